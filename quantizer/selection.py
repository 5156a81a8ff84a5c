"""Which matrices a run quantizes: all of them, less what `--exclude` names."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from runtime.errors import QuantizationError

from .graph.quantizable import QuantizableWeight


def select_weights(sites: Sequence[QuantizableWeight], exclude: Sequence[str]) -> list[QuantizableWeight]:
    """Sites whose names no pattern of `exclude` matches; of experts that are stored alike, all or none.

    Raises:
        QuantizationError: a pattern matches nothing, or nothing is left.
    """
    for pattern in exclude:
        if not any(fnmatchcase(site.name, pattern) for site in sites):
            raise QuantizationError(_no_match(pattern, [site.name for site in sites]))
    left_out = {site.unit for site in sites if any(fnmatchcase(site.name, pattern) for pattern in exclude)}
    left = [site for site in sites if site.unit not in left_out]
    if not left:
        raise QuantizationError("no matrix is left to quantize: the patterns of exclude match all of them.")
    return left


def _no_match(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names, n=3, cutoff=0.0)
    return f"exclude: {pattern!r} matches no matrix. Near: {', '.join(near)}. `*` matches any text."
