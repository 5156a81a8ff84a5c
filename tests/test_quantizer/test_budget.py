"""Sensitivity and the knapsack."""

import numpy as np
import pytest

from quantizer.allocation.knapsack import Candidate, allocate
from quantizer.allocation.sensitivity import Carried, Sensitivity
from quantizer.calibration.data import split
from quantizer.evaluation.kl import Model, evaluate
from quantizer.flow import quantize
from quantizer.graph.graphs import load_graphs
from quantizer.presets import make_recipe
from quantizer.storage.scheme import QuantConfig, Scheme
from quantizer.storage.weights_file import Layout, WeightsWriter, read_tensor
from runtime.bundle.bundle import open_bundle
from runtime.errors import QuantizationError

CHUNKS = np.random.default_rng(3).integers(3, 320, (6, 48))
FOUR, EIGHT = QuantConfig(Scheme(4)), QuantConfig(Scheme(8))


def options(**predicted_kl):
    return {
        name: [Candidate(FOUR, 100, value), Candidate(EIGHT, 200, value / 100)] for name, value in predicted_kl.items()
    }


def total(chosen):
    return sum(option.cost for option in chosen.values())


def test_the_budget_goes_where_it_helps_most():
    chosen = allocate(options(a=0.1, b=5.0, c=1.0), 500, total)
    assert {name: option.config.scheme.bits for name, option in chosen.items()} == {"a": 4, "b": 8, "c": 8}
    assert total(allocate(options(a=1.0, b=1.0), 10**6, total)) == 400


def test_what_one_price_leaves_over_is_spent_too():
    assert total(allocate(options(a=1.0, b=1.0, c=1.0), 450, total)) == 400  # a price moves all three or none


def test_an_impossible_budget_says_what_is_possible(tiny_bundle, tmp_path):
    with pytest.raises(QuantizationError, match=r"smallest this bundle can become is [\d,]+ bytes") as raised:
        quantize(tiny_bundle, tmp_path / "q", make_recipe(budget=1.5))
    assert not (tmp_path / "q").exists()
    assert "exclude fewer matrices" in str(raised.value)


def test_sensitivity_is_the_divergence_of_the_model(tiny_bundle):
    bundle = open_bundle(tiny_bundle)
    sensitivity = Sensitivity(bundle, CHUNKS[:2])
    name = "model.layers.1.mlp.down_proj.weight"
    weight = read_tensor(load_graphs(bundle).initializers()[name])
    assert sensitivity.kl({name: weight}) == pytest.approx(0, abs=1e-7)
    assert sensitivity.kl({name: weight * 0.5}) > 10 * sensitivity.kl({name: weight * 0.95}) > 0


LINEAR = [f"model.layers.{i}.{name}.weight" for i in range(2) for name in ("self_attn.o_proj", "mlp.down_proj")]


def walked(bundle, weights, most):
    sensitivity = Sensitivity(open_bundle(bundle), CHUNKS[:4], carried=Carried(most, young=0, last=0))
    for layer in range(sensitivity.layers):
        names = sensitivity.weights_of(layer)
        sensitivity.advance({name: weight for name, weight in weights.items() if name in names})
    return sensitivity


def test_streams_end_where_runs_of_their_own_end(tiny_bundle):
    tensors = load_graphs(open_bundle(tiny_bundle)).initializers()
    weights = {name: read_tensor(tensors[name]) * np.float32(0.9) for name in LINEAR}
    sensitivity = walked(tiny_bundle, weights, 100)
    found = sensitivity.finish()
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert found[name] == pytest.approx(sensitivity.kl({name: weight}), rel=1e-4)


def test_joined_streams_share_what_they_cause(tiny_bundle):
    """Joined at once and to the end: the sum is nearly that of separate runs, and each has its share."""
    tensors = load_graphs(open_bundle(tiny_bundle)).initializers()
    noise = np.random.default_rng(5)
    weights = {name: read_tensor(tensors[name]) for name in LINEAR}
    weights = {name: w * noise.normal(1, 0.05, w.shape).astype(np.float32) for name, w in weights.items()}
    apart, joined = (walked(tiny_bundle, weights, most).finish() for most in (100, 1))
    assert sum(joined.values()) == pytest.approx(sum(apart.values()), rel=0.3)
    assert all(0.2 < joined[name] / apart[name] < 5 for name in weights)


def test_a_tied_table_is_replaced_at_both_ends(tiny_bundle):
    bundle = open_bundle(tiny_bundle)
    name = "model.embed_tokens.weight"
    table = read_tensor(load_graphs(bundle).initializers()[name])
    # Embeddings are normed before they are read: doubling the table doubles the logits, and hardly anything else.
    kl = Sensitivity(bundle, CHUNKS[:1]).kl({name: np.ascontiguousarray(table[:, ::-1])})
    assert kl > 0.01


def test_layout_is_what_the_writer_writes(tmp_path):
    lengths = {"a": 100, "b": 70_000, "c": 10}
    with WeightsWriter(tmp_path / "w.bin") as writer:
        for name, length in {"a": 100, "b1": 5, "b2": 66_000, "c": 10}.items():
            writer.add(name, np.zeros(length, np.uint8))
    assert Layout(lengths).size({"b": [5, 66_000]}) == (tmp_path / "w.bin").stat().st_size


def test_a_budget_is_kept_and_used(tiny_bundle, tmp_path):
    text = split("random", CHUNKS)
    sizes, kls = [], []
    reference = Model(open_bundle(tiny_bundle))
    for bits in (5.2, 7.0):
        result = quantize(tiny_bundle, tmp_path / f"q{bits}", make_recipe(budget=bits), text=text)
        sizes.append(result.bits_per_weight)
        kls.append(evaluate(Model(open_bundle(tmp_path / f"q{bits}")), reference, CHUNKS[:2]).kl)
        assert bits - 0.6 < result.bits_per_weight <= bits
        assert result.manifest.quality is not None
    assert kls[1] < kls[0]


def test_work_is_resumed_and_the_file_is_the_same(tiny_bundle, tmp_path):
    text, recipe = split("random", CHUNKS), make_recipe(budget=6.0)
    seen: dict[str, list[str]] = {"one": [], "two": []}
    for name, doing in seen.items():
        options = {
            "text": text,
            "work": tmp_path / "work",
            "progress": lambda *step, doing=doing: doing.append(step[0]),
        }
        quantize(tiny_bundle, tmp_path / name, recipe, **options)
    assert [sum(step.startswith("calibrating") for step in doing) for doing in seen.values()] == [2, 0]
    assert (tmp_path / "one" / "weights.bin").read_bytes() == (tmp_path / "two" / "weights.bin").read_bytes()
