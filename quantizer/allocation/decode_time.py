"""A budget of time: what the matrix products of a decode step take on a target, spent by measured sensitivity.

KL is predicted as for a budget of bytes, and beside it what products lose that round activations to 8 bits: they do so
by group, so that wide groups lose more. CUDA's products do not round them.
"""

from collections.abc import Mapping, Sequence

from runtime.errors import QuantizationError

from ..costs.table import CostTable
from ..graph.quantizable import QuantizableWeight
from ..recipe import TimeBudget
from ..storage.scheme import QuantConfig, Scheme
from .budget import Measured, predicted_kl_of, units_of
from .knapsack import Candidate, allocate, smallest

_PLAIN = {"linear": Scheme(4, 32), "embedding": Scheme(8, 32, symmetric=True), "experts": Scheme(4, 32)}


def allocate_time(
    sites: Sequence[QuantizableWeight],
    candidates: Mapping[str, Sequence[QuantConfig]],
    measured: Mapping[str, Measured],
    time: TimeBudget,
) -> dict[str, QuantConfig]:
    """The config of each unit of sites that are stored alike, such that a decode step keeps `time`.

    Args:
        sites: the matrices to quantize.
        candidates: of each unit; only where there are several of them, its matrices need have been measured.
        measured: matrices, by weight name.
        time: the budget.

    Raises:
        QuantizationError: the fastest candidates take longer, or the target has no costs of one of them.
    """
    table, rounded = time.table, time.target != "cuda"
    options = {
        name: [_option(unit, config, measured, table, rounded=rounded) for config in candidates[name]]
        for name, unit in units_of(sites).items()
    }
    plain = plain_ns(sites, table)
    least = _total(smallest(options))
    if least > time.ratio * plain:
        raise QuantizationError(
            f"time: {time.ratio:g} of the time of plain 4-bit groups is too little; the fastest this bundle can become "
            f"on {table.target} takes {least / plain:.2f}. Allow more, or exclude fewer matrices."
        )
    chosen = allocate(options, time.ratio * plain, _total)
    return {name: option.config for name, option in chosen.items()}


def decode_ns(site: QuantizableWeight, config: QuantConfig, table: CostTable) -> float:
    """Nanoseconds of a decode step for one site, whole groups and residual-coded channels included."""
    if not site.multiplied:
        return table.kernel("GatherBlockQuantized", config.scheme.bits, 32).ns_per_call
    scheme = config.scheme
    groups = scheme.groups(site.inputs) + scheme.groups(config.residual_channels)
    rows = site.rows * (site.active if site.role == "experts" else 1)
    product = table.product(rows, groups * scheme.group_size, scheme.bits, scheme.group_size)
    return product + (table.kernel("Repeat").ns_per_call if config.residual_channels else 0.0)


def plain_ns(sites: Sequence[QuantizableWeight], table: CostTable) -> float:
    """Nanoseconds with every matrix in plain 4-bit groups of 32 and the embedding in 8 bits: 1.0 of a time budget."""
    return sum(decode_ns(site, QuantConfig(_PLAIN[site.role]), table) for site in sites)


def _option(
    unit: Sequence[QuantizableWeight],
    config: QuantConfig,
    measured: Mapping[str, Measured],
    table: CostTable,
    *,
    rounded: bool,
) -> Candidate:
    cost = sum(decode_ns(site, config, table) for site in unit)
    predicted = sum(predicted_kl_of(site, config, measured.get(site.weight), rounded=rounded) for site in unit)
    return Candidate(config, cost, predicted)


def _total(chosen: Mapping[str, Candidate]) -> float:
    return sum(option.cost for option in chosen.values())
