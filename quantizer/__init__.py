"""Bundle in, smaller bundle out, with the loss measured.

>>> import quantizer
>>> result = quantizer.quantize("smol", "smol-5", preset="balanced")  # doctest: +SKIP
>>> quantizer.evaluate("smol-5", "smol", "book.txt").kl  # doctest: +SKIP
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from .api import evaluate, quantize, quantize_cache
    from .evaluation.kl import Scores
    from .flow import Result
    from .kv_cache.quality import CacheQuality
    from .recipe import Recipe
    from .storage.scheme import QuantConfig, Scheme

__all__ = [
    "CacheQuality",
    "QuantConfig",
    "Recipe",
    "Result",
    "Scheme",
    "Scores",
    "evaluate",
    "quantize",
    "quantize_cache",
]
_MODULES = {
    "CacheQuality": ".kv_cache.quality",
    "QuantConfig": ".storage.scheme",
    "Recipe": ".recipe",
    "Result": ".flow",
    "Scheme": ".storage.scheme",
    "Scores": ".evaluation.kl",
    "evaluate": ".api",
    "quantize": ".api",
    "quantize_cache": ".api",
}


def __getattr__(name: str) -> object:
    """Import names on first use: the exporter needs only packing."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(_import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value
