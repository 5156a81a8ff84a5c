"""The candidates by which matrices may be stored."""

from dataclasses import replace

import pytest

from quantizer.allocation.candidates import candidates_of, config_for, schemes_of
from quantizer.graph.quantizable import QuantizableWeight
from quantizer.presets import Storage, make_recipe
from quantizer.storage.scheme import GROUP_SIZES

MATRIX = QuantizableWeight("down", "down.weight", "linear", 576, 1536, transposed=True)
EMBEDDING = QuantizableWeight("embed", "embed.weight", "embedding", 49152, 576, transposed=False)
EXPERTS = QuantizableWeight(
    "up", "up.weight", "experts", 64, 64, transposed=False, count=4, operator="experts", divisor=64
)
AUTO = make_recipe(storage=Storage(bits=4, residual_channels="auto"))


@pytest.mark.parametrize("size", GROUP_SIZES)
def test_residual_channels_fill_groups_of_the_recipe_s_own_scheme(size):
    recipe = make_recipe(storage=Storage(bits=4, group_size=size, residual_channels="auto"))
    candidates = candidates_of(MATRIX, recipe)
    assert {candidate.scheme for candidate in candidates} == {recipe.linear.scheme}
    assert [candidate.residual_channels for candidate in candidates][:3] == [0, size, 2 * size]
    assert max(candidate.residual_channels for candidate in candidates) <= 768


def test_only_four_bits_get_residual_channels():
    assert [candidate.residual_channels for candidate in candidates_of(EMBEDDING, AUTO)] == [0]
    embedding = replace(AUTO.embedding, scheme=replace(AUTO.embedding.scheme, bits=4))
    assert [candidate.residual_channels for candidate in candidates_of(EMBEDDING, replace(AUTO, embedding=embedding))][
        :2
    ] == [0, 32]
    assert len(candidates_of(MATRIX, make_recipe(storage=Storage(bits=8, residual_channels="auto")))) == 1
    assert candidates_of(EXPERTS, AUTO) == [config_for(EXPERTS, AUTO)]


@pytest.mark.parametrize("site", [MATRIX, EMBEDDING, EXPERTS])
def test_what_is_measured_serves_every_recipe_of_these_schemes(site):
    budget = replace(AUTO, residual_share=None, budget=5.0)
    assert schemes_of(site, budget) == schemes_of(site, AUTO)
    assert {candidate.scheme for recipe in (AUTO, budget) for candidate in candidates_of(site, recipe)} <= schemes_of(
        site, AUTO
    )
