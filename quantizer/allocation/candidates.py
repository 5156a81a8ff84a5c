"""The candidates of a matrix: how it may be stored, by what the recipe says or among several that it weighs."""

from collections.abc import Sequence
from dataclasses import replace

from ..graph.expert_stacks import experts_config
from ..graph.quantizable import QuantizableWeight
from ..recipe import Recipe
from ..storage.scheme import QuantConfig, Scheme

_RESIDUALS = {64: (0, 64, 128), 32: (0, 32, 64, 96, 128, 192, 256), 16: (0, 32, 64, 128, 192)}  # by group size
_LINEAR = [QuantConfig(Scheme(4, size, scale_bits=8), n) for size, counts in _RESIDUALS.items() for n in counts]
_LINEAR += [
    QuantConfig(Scheme(8, 32, symmetric=True, scale_bits=8))
]  # small groups: activations are rounded by group too
_EMBEDDING = [QuantConfig(Scheme(4, 32, symmetric=True, scale_bits=8), n) for n in (0, 32, 64, 128)]
_EMBEDDING += [QuantConfig(Scheme(8, 32, symmetric=True, scale_bits=8))]
# A step pays for bytes in memory, where scales take 64 / group size bits of a weight: wide groups, second codes where
# they lose too much, and 8 bits in wide groups take the place of small groups.
_WIDE = {128: (0, 128), 64: (0, 64, 128), 32: (0, 32, 64, 128), 16: (0,)}
_TIMED_LINEAR = [QuantConfig(Scheme(4, size, scale_bits=8), n) for size, counts in _WIDE.items() for n in counts]
_TIMED_LINEAR += [QuantConfig(Scheme(8, size, symmetric=True, scale_bits=8)) for size in (32, 64, 128)]
_TIMED_EMBEDDING = [QuantConfig(replace(c.scheme, symmetric=True), c.residual_channels) for c in _TIMED_LINEAR]
_EXPERTS = [Scheme(4, 64), Scheme(4, 32), Scheme(8, 64)]
_BASE = {
    "linear": QuantConfig(Scheme(4, 32, scale_bits=8)),
    "embedding": QuantConfig(Scheme(4, 32, symmetric=True, scale_bits=8)),
}
_EXPERTS_BASE = Scheme(4, 32)
_GROUPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of residual channels that a recipe's own scheme may have


def config_for(site: QuantizableWeight, recipe: Recipe) -> QuantConfig:
    """How a recipe that weighs nothing stores a matrix."""
    if site.role == "experts":
        return experts_config(site, recipe.linear.scheme)
    return recipe.embedding if site.role == "embedding" else recipe.linear


def base_of(site: QuantizableWeight) -> QuantConfig:
    """The ordinary way, in which a matrix is stored when its sensitivity is measured."""
    return experts_config(site, _EXPERTS_BASE) if site.role == "experts" else _BASE[site.role]


def candidates_of(site: QuantizableWeight, recipe: Recipe) -> list[QuantConfig]:
    """The candidates among which the recipe chooses."""
    if recipe.budget is not None:
        return _candidates_of_a_budget(site)
    if recipe.time is not None:
        return _candidates_of_a_time(site)
    own = config_for(site, recipe)
    return [own] if recipe.residual_share is None else _with_residuals(site, own.scheme)


def schemes_of(site: QuantizableWeight, recipe: Recipe) -> set[Scheme]:
    """The schemes whose input errors are measured: the same for a budget and for a share of residual channels."""
    more = [] if recipe.time is None else _candidates_of_a_time(site)
    return {candidate.scheme for candidate in [*_candidates_of_a_budget(site), *more, config_for(site, recipe)]}


def _candidates_of_a_budget(site: QuantizableWeight) -> list[QuantConfig]:
    if site.role == "experts":
        return list(dict.fromkeys(experts_config(site, scheme) for scheme in _EXPERTS))
    return _that_fit(site, _EMBEDDING if site.role == "embedding" else _LINEAR)


def _candidates_of_a_time(site: QuantizableWeight) -> list[QuantConfig]:
    if site.role == "experts":
        schemes = (Scheme(bits, size) for bits in (4, 8) for size in (128, 64, 32))
        return list(dict.fromkeys(experts_config(site, scheme) for scheme in schemes))
    return _that_fit(site, _TIMED_EMBEDDING if site.role == "embedding" else _TIMED_LINEAR)


def _with_residuals(site: QuantizableWeight, scheme: Scheme) -> list[QuantConfig]:
    """At 8 bits, what is lost is lost to the activations, which are rounded to 8 bits too: second codes buy nothing."""
    if site.role == "experts" or scheme.bits == 8:
        return [QuantConfig(scheme)]
    return _that_fit(site, [QuantConfig(scheme, groups * scheme.group_size) for groups in _GROUPS])


def _that_fit(site: QuantizableWeight, candidates: Sequence[QuantConfig]) -> list[QuantConfig]:
    return [candidate for candidate in candidates if candidate.residual_channels <= site.inputs // 2]
