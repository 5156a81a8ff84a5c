"""Refuse to start, in words, when a user's file hides one of our packages: their names are common ones."""

from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def require_own(*names: str) -> None:
    """Raise ImportError, naming the file that is in the way, unless `import name` finds our package for each name.

    To stand in exporter/__init__.py before any other import of ours:

        from ._own_names import require_own

        require_own("runtime", "models")
    """
    for name in names:
        ours = _ROOT / name / "__init__.py"
        try:
            origin = getattr(find_spec(name), "origin", None)
        except ValueError:  # imported already, by something that gave it no spec
            origin = None
        if origin is None or Path(origin).resolve() != ours:
            raise ImportError(
                f"`import {name}` finds {origin or 'something else'} instead of {ours}: a file or folder of that name "
                f"hides ours. Use the onnxlm command, run python with -P, or rename it."
            )
