"""Read checkpoints, write bundles."""

from ._own_names import require_own as _require_own

_require_own("runtime", "models")
