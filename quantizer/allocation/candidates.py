"""The ways in which a matrix may be stored: the one that a recipe says, or several that it weighs."""

from collections.abc import Sequence

from ..graph.expert_stacks import experts_choice
from ..graph.sites import Site
from ..recipe import Choice, Recipe, Scheme

_OUTLIERS = {64: (0, 64, 128), 32: (0, 32, 64, 96, 128, 192, 256), 16: (0, 32, 64, 128, 192)}  # by group size
_LINEAR = [Choice(Scheme(4, size, scale_bits=8), n) for size, counts in _OUTLIERS.items() for n in counts]
_LINEAR += [Choice(Scheme(8, 32, symmetric=True, scale_bits=8))]  # small groups: activations are rounded by group too
_TABLE = [Choice(Scheme(4, 32, symmetric=True, scale_bits=8), n) for n in (0, 32, 64, 128)]
_TABLE += [Choice(Scheme(8, 32, symmetric=True, scale_bits=8))]
_EXPERTS = [Scheme(4, 64), Scheme(4, 32), Scheme(8, 64)]
_BASE = {"linear": Choice(Scheme(4, 32, scale_bits=8)), "table": Choice(Scheme(4, 32, symmetric=True, scale_bits=8))}
_EXPERTS_BASE = Scheme(4, 32)
_GROUPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of outliers that a recipe's own scheme may have


def choice_for(site: Site, recipe: Recipe) -> Choice:
    """How a recipe that weighs nothing stores a matrix."""
    if site.role == "experts":
        return experts_choice(site, recipe.linear.scheme)
    return recipe.table if site.role == "table" else recipe.linear


def base_of(site: Site) -> Choice:
    """The ordinary way, in which a matrix is stored when its sensitivity is measured."""
    return experts_choice(site, _EXPERTS_BASE) if site.role == "experts" else _BASE[site.role]


def ways_of(site: Site, recipe: Recipe) -> list[Choice]:
    """The ways among which the recipe chooses."""
    if recipe.budget is not None:
        return _ways_of_a_budget(site)
    own = choice_for(site, recipe)
    return [own] if recipe.outlier_share is None else _with_outliers(site, own.scheme)


def schemes_of(site: Site, recipe: Recipe) -> set[Scheme]:
    """The schemes whose damages are measured: the same for a budget and for a share of outliers."""
    return {way.scheme for way in [*_ways_of_a_budget(site), choice_for(site, recipe)]}


def _ways_of_a_budget(site: Site) -> list[Choice]:
    if site.role == "experts":
        return list(dict.fromkeys(experts_choice(site, scheme) for scheme in _EXPERTS))
    return _that_fit(site, _TABLE if site.role == "table" else _LINEAR)


def _with_outliers(site: Site, scheme: Scheme) -> list[Choice]:
    """At 8 bits, what is lost is lost to the activations, which are rounded to 8 bits too: second codes buy nothing."""
    if site.role == "experts" or scheme.bits == 8:
        return [Choice(scheme)]
    return _that_fit(site, [Choice(scheme, groups * scheme.group_size) for groups in _GROUPS])


def _that_fit(site: Site, ways: Sequence[Choice]) -> list[Choice]:
    return [way for way in ways if way.outliers <= site.inputs // 2]
