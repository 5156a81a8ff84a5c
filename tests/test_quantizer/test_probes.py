"""Recall, arithmetic and copying: agreement and margin against the reference's own answers."""

import pytest

from quantizer.evaluation.probes import compare_probes, make_questions
from quantizer.flow import quantize
from quantizer.presets import Storage, make_recipe
from quantizer.progress import silent
from runtime import LLM


def test_a_model_agrees_with_itself(tiny_bundle):
    found = compare_probes(tiny_bundle, tiny_bundle, [64], silent)
    assert [ability.name for ability in found] == ["recall at 64 tokens", "arithmetic", "copying"]
    assert all((ability.agreement, ability.margin) == (1.0, 0.0) for ability in found)


def test_a_quantized_model_is_told_apart(tiny_bundle, tmp_path):
    quantize(tiny_bundle, tmp_path / "q", make_recipe(storage=Storage(bits=4, embedding_bits=4)))
    found = compare_probes(tmp_path / "q", tiny_bundle, [], silent)
    again = compare_probes(tmp_path / "q", tiny_bundle, [], silent)
    assert [(a.name, a.agreement, a.margin) for a in found] == [(a.name, a.agreement, a.margin) for a in again]
    assert all(ability.margin != 0 for ability in found)
    assert min(ability.agreement for ability in found) < 1


def test_the_fact_is_where_it_should_be(tiny_bundle):
    with LLM(tiny_bundle) as llm:
        prompts = [q.prompt for q in make_questions(llm, [200]) if q.ability.startswith("recall")]
    places = [prompt.index("The secret number of the") / len(prompt) for prompt in prompts]
    assert places == sorted(places)
    assert places[1] == pytest.approx(0.4, abs=0.2)
