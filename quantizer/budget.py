"""A budget of bits per weight, spent by measured sensitivity.

Each matrix is quantized alone in the smallest ordinary way, and its KL divergence measured. What other ways would cost
is predicted from that: KL is proportional to the error E of the layer's outputs, and E of a scheme to the weighted
error of its plain rounding, less the share of the inputs that get a second code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .allocate import Option, allocate
from .gptq import damp
from .matrix import Floats
from .method import quantize_matrix
from .outliers import effective
from .packing import packed_bytes
from .rounding import round_to_nearest
from .scheme import Choice, Scheme
from .sites import Site
from .weights_file import Layout

_LINEAR = [
    Choice(Scheme(4, 64)), Choice(Scheme(4, 64), 64), Choice(Scheme(4, 64), 128),
    Choice(Scheme(4, 32)), Choice(Scheme(4, 32), 32), Choice(Scheme(4, 32), 64), Choice(Scheme(4, 32), 128),
    Choice(Scheme(8, 64)),
]  # fmt: skip
_TABLE = [
    Choice(Scheme(4, 32, symmetric=True)),
    Choice(Scheme(4, 32, symmetric=True), 64),
    Choice(Scheme(8, 32, symmetric=True)),
]
_BASE = {"linear": Choice(Scheme(4, 32)), "table": Choice(Scheme(4, 32, symmetric=True))}
_SCALE_BYTES = 2


@dataclass(frozen=True)
class Measured:
    """One matrix: the KL divergence that its base choice adds alone, and the damage of each input under a scheme."""

    kl: float
    damages: dict[Scheme, Floats]


def measure(site: Site, weight: Floats, gram: Floats | None, kl_with: Callable[[Floats], float]) -> Measured:
    """Quantize one matrix `[N, K]` by its base choice, and measure.

    Args:
        site: the matrix.
        weight: rearranged, float.
        gram: of its inputs.
        kl_with: KL divergence of the model when this matrix takes other values `[N, K]`.
    """
    base = _BASE[site.role]
    matrix, index = quantize_matrix(weight, gram, base, "gptq", np.float16)
    importance = np.ones(site.inputs, np.float32) if gram is None else damp(gram).diagonal().astype(np.float32)
    schemes = {choice.scheme for choice in ways_of(site)}
    return Measured(kl_with(effective(matrix, index)), {s: _damages(weight, importance, s) for s in schemes})


def ways_of(site: Site) -> list[Choice]:
    """The ways in which a budget may store a matrix."""
    ways = _TABLE if site.role == "table" else _LINEAR
    return [way for way in ways if way.outliers <= site.inputs // 2]


def spend(
    sites: Mapping[str, Site], measured: Mapping[str, Measured], budget: int, layout: Layout
) -> dict[str, Choice]:
    """The choice for each weight; `layout` knows what else lies in the file."""
    options = {name: [_option(site, way, measured[name]) for way in ways_of(site)] for name, site in sites.items()}

    def size(chosen: Mapping[str, Option]) -> int:
        return layout.size({name: _parts(sites[name], option.choice) for name, option in chosen.items()})

    return {name: option.choice for name, option in allocate(options, budget, size).items()}


def _option(site: Site, choice: Choice, measured: Measured) -> Option:
    before = float(measured.damages[_BASE[site.role].scheme].sum())
    lost = np.sort(measured.damages[choice.scheme])[: site.inputs - choice.outliers]
    share = float(lost.sum()) / before if before else 0.0
    return Option(choice, sum(_parts(site, choice)), measured.kl * share)


def _damages(weight: Floats, importance: Floats, scheme: Scheme) -> Floats:
    lost = weight - round_to_nearest(weight, scheme).dequantize()
    result: Floats = importance * np.einsum("nk,nk->k", lost, lost)
    return result


def _parts(site: Site, choice: Choice) -> list[int]:
    """Bytes of codes, scales, zero points and outlier indices."""
    groups = choice.scheme.groups(site.inputs) + choice.scheme.groups(choice.outliers)
    total = packed_bytes(site.rows, site.inputs, choice, _SCALE_BYTES)
    scales = site.rows * groups * _SCALE_BYTES
    codes = site.rows * groups * choice.scheme.group_size * choice.scheme.bits // 8
    index = 8 * (choice.outliers + -site.inputs % choice.scheme.group_size) if choice.outliers else 0
    return [part for part in (codes, scales, total - codes - scales, index) if part]
