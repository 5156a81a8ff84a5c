"""What can be exported: each `model_type`, its GGUF names, and how its graphs were checked."""

import ast
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

VERIFIED = "transformers, float32 on CPU"  # tests/test_models/test_families.py has a case for each family


@dataclass(frozen=True)
class Family:
    """One row of the table; `about` is what the family's file says of itself."""

    model_type: str
    gguf: tuple[str, ...]
    verified: str
    about: str


def list_families() -> list[Family]:
    """All families, in the order of models.families."""
    from models.families import FAMILIES

    from .checkpoint.gguf_registry import architectures

    return [
        Family(model_type, architectures(model_type), VERIFIED, _about(f"models.{module}"))
        for model_type, module in FAMILIES.items()
    ]


def families_as_text() -> str:
    """The table for a terminal."""
    rows = [("model_type", "GGUF", "verified with")]
    rows += [(family.model_type, ", ".join(family.gguf) or "-", family.verified) for family in list_families()]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}" for row in rows)


def _about(module: str) -> str:
    """The first line of a module's docstring, without importing it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
