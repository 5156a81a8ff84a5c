"""Bundle in, smaller bundle out, with the loss measured.

>>> import quantizer
>>> result = quantizer.quantize("smol", "smol-5", preset="balanced")  # doctest: +SKIP
>>> quantizer.evaluate("smol-5", "smol", "book.txt").kl  # doctest: +SKIP
"""

# The function hides the module of its name, which is why both are imported here and now.
from .api import evaluate, quantize_cache
from .evaluation.kl import Scores
from .kv_cache.quality import CacheQuality
from .quantize import Result
from .recipe import QuantConfig, Recipe, Scheme

from .api import quantize  # isort: skip

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
