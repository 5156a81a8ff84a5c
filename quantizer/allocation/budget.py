"""A budget of bytes, spent by measured sensitivity.

Each matrix is quantized alone by its base config, and its KL divergence measured. What other candidates would cost is
predicted from that: KL is proportional to the error E of the layer's outputs, and E of a scheme to the error of its
plain rounding, input by input, times the input's conditional variance given all others, 1 / diag(H⁻¹). Inputs with a
second code lose nothing. Compared with GPTQ on SmolLM2-135M, E was predicted within 6 %; weighted
by diag(H) instead, residual channels looked up to twice as good as they are.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from runtime.errors import QuantizationError

from ..algorithms.hessian import Hessian
from ..algorithms.outlier_channels import lost_to_rounding
from ..algorithms.quantize_matrix import quantize_matrix
from ..algorithms.registry import CALIBRATED
from ..algorithms.rtn import lost_by_input
from ..graph.quantizable import QuantizableWeight
from ..parallel import parallel_map
from ..storage.matrix import Floats
from ..storage.packing import packed_bytes
from ..storage.scheme import QuantConfig, Scheme
from ..storage.weights_file import Layout
from .candidates import base_of
from .knapsack import Candidate, allocate, smallest

_SCALE_BYTES = 2
# By group size. A product in groups of 16 takes 1.1 to 1.7 times that in groups of 32, by shape, on the CPUs tried; a
# step has much besides, and this only breaks ties.
_SLOWNESS = {16: 1.05}


@dataclass(frozen=True)
class Measured:
    """One matrix: the KL divergence that its base config adds alone, the error of each input under a scheme, and what
    8-bit activations lose by group size."""

    kl: float
    input_errors: dict[Scheme, Floats]
    rounding_errors: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Tried:
    """One matrix quantized by its base config: its values `[N, K]`, or `[E, N, K]`, and errors as in `Measured`."""

    values: Floats
    input_errors: dict[Scheme, Floats]
    rounding_errors: dict[int, float]


def try_base(
    site: QuantizableWeight,
    matrices: Iterable[Callable[[], tuple[Floats, Hessian | None]]],
    schemes: Collection[Scheme],
) -> Tried:
    """Quantize a matrix `[N, K]`, or a stack of them, by its base config: several of a stack at a time.

    Args:
        site: the matrix or stack.
        matrices: makes, of each matrix, the float weights, rearranged, and the Hessian of its inputs if known.
        schemes: whose input errors are wanted.
    """
    values = np.empty((site.count, site.rows, site.inputs), np.float32)  # takes memory when it is written to

    def one(number: int, read: Callable[[], tuple[Floats, Hessian | None]]) -> _Errors:
        weight, hessian = read()
        matrix, _ = quantize_matrix(weight, hessian, base_of(site), CALIBRATED, np.float16)
        errors = _errors(weight, hessian, schemes)
        del weight  # the largest matrices of a model are a quarter of it: one copy at a time
        matrix.dequantize(values[number])
        return errors

    tried = Tried(values if site.role == "experts" else values[0], {}, {})
    for input_errors, rounding_errors in parallel_map(partial(one, *entry) for entry in enumerate(matrices)):
        for scheme, errors in input_errors.items():
            tried.input_errors[scheme] = tried.input_errors.get(scheme, np.float32(0)) + errors
        for size, lost in rounding_errors.items():
            tried.rounding_errors[size] = tried.rounding_errors.get(size, 0.0) + lost
    return tried


_Errors = tuple[dict[Scheme, Floats], dict[int, float]]


def _errors(weight: Floats, hessian: Hessian | None, schemes: Collection[Scheme]) -> _Errors:
    """Of one matrix, as in `Measured`."""
    importance = np.ones(weight.shape[1], np.float32) if hessian is None else hessian.conditional_variances
    input_errors = {scheme: importance * lost_by_input(weight, scheme) for scheme in schemes}
    if hessian is None:
        return input_errors, dict.fromkeys({scheme.group_size for scheme in schemes}, 0.0)
    norms, squares = np.einsum("nk,nk->k", weight, weight), hessian.values.diagonal()
    sizes = {scheme.group_size for scheme in schemes}
    return input_errors, {size: float(lost_to_rounding(squares, norms, size).sum()) for size in sizes}


def allocate_bytes(
    sites: Sequence[QuantizableWeight],
    candidates: Mapping[str, Sequence[QuantConfig]],
    measured: Mapping[str, Measured],
    budget: int,
    layout: Layout,
) -> dict[str, QuantConfig]:
    """The choice for each unit of sites that are stored alike.

    Args:
        sites: the matrices to quantize.
        candidates: to store each unit; only where there are several of them, its matrices need have been measured.
        measured: matrices, by weight name.
        budget: bytes of the whole file.
        layout: knows what else lies in it.

    Raises:
        QuantizationError: the smallest choice is larger than the budget.
    """
    units = units_of(sites)
    options = {
        name: [_option(unit, candidate, measured) for candidate in candidates[name]] for name, unit in units.items()
    }

    def size(chosen: Mapping[str, Candidate]) -> float:
        return stored_bytes(sites, {name: option.config for name, option in chosen.items()}, layout)

    least = size(smallest(options))
    if least > budget:
        raise QuantizationError(
            f"budget: {budget:,} bytes are too few; the smallest this bundle can become is {least:,} bytes. "
            "Allow more bits per weight, or exclude fewer matrices."
        )
    return {name: option.config for name, option in allocate(options, budget, size).items()}


def units_of(sites: Sequence[QuantizableWeight]) -> dict[str, list[QuantizableWeight]]:
    """The sites that are stored alike, by the name of what decides it."""
    units: dict[str, list[QuantizableWeight]] = {}
    for site in sites:
        units.setdefault(site.unit, []).append(site)
    return units


def stored_bytes(sites: Sequence[QuantizableWeight], configs: Mapping[str, QuantConfig], layout: Layout) -> int:
    """Bytes of weights.bin when each unit is stored by its choice."""
    return layout.size({site.weight: _parts(site, configs[site.unit]) for site in sites})


def _option(unit: Sequence[QuantizableWeight], config: QuantConfig, measured: Mapping[str, Measured]) -> Candidate:
    nbytes = sum(sum(_parts(site, config)) for site in unit)
    predicted_kl = sum(predicted_kl_of(site, config, measured.get(site.weight)) for site in unit)
    return Candidate(config, nbytes, predicted_kl, _SLOWNESS.get(config.scheme.group_size, 1.0))


def predicted_kl_of(
    site: QuantizableWeight, config: QuantConfig, measured: Measured | None, *, rounded: bool = False
) -> float:
    """The KL divergence that a matrix is predicted to add, in nats; with what 8-bit activations lose if `rounded`."""
    if measured is None:
        return 0.0
    before = float(measured.input_errors[base_of(site).scheme].sum())
    lost = np.sort(measured.input_errors[config.scheme])[: site.inputs - config.residual_channels]
    rounding = measured.rounding_errors[config.scheme.group_size] if rounded else 0.0
    return measured.kl * ((float(lost.sum()) + rounding) / before) if before else 0.0


def _parts(site: QuantizableWeight, config: QuantConfig) -> list[int]:
    """Bytes of codes, scales, and what else there is: zero points, steps, residual indices."""
    rows, scheme = site.rows * site.count, config.scheme
    groups = scheme.groups(site.inputs) + scheme.groups(config.residual_channels)
    codes = rows * groups * scheme.group_size * scheme.bits // 8
    scales = rows * groups * (_SCALE_BYTES if scheme.scale_bits == 16 else 1)
    steps = 0 if scheme.scale_bits == 16 else 2 * rows
    zeros = packed_bytes(rows, site.inputs, config, _SCALE_BYTES) - codes - scales - steps
    index = 8 * (config.residual_channels + -site.inputs % scheme.group_size) if config.residual_channels else 0
    return [part for part in (codes, scales, zeros, steps, index) if part]
