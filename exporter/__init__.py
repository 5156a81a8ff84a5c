"""Read checkpoints, write bundles.

>>> import exporter
>>> exporter.export("SmolLM2-135M-Instruct", "smol")  # doctest: +SKIP
"""

from ._own_names import require_own as _require_own

_require_own("runtime", "models", "quantizer")

# The function hides the module of its name, which is why both are imported here and now.
from .export import ExportReport, export  # noqa: E402
from .genai.folder import GenaiReport, export_genai  # noqa: E402
from .options import ExportOptions  # noqa: E402

__all__ = ["ExportOptions", "ExportReport", "GenaiReport", "export", "export_genai"]
