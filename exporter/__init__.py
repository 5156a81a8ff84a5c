"""Read checkpoints, write bundles."""

from ._own_names import require_own

require_own("runtime", "models")
