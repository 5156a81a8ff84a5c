"""Kernel costs: what is shipped, what is measured, and budgets of time."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import quantizer
from quantizer.allocation.decode_time import decode_ns, plain_ns
from quantizer.calibration.data import split
from quantizer.costs.measure import Effort, fit, measure_kernels
from quantizer.costs.table import TARGETS, read_costs
from quantizer.flow import quantize
from quantizer.graph.graphs import load_graphs, prefill_graph
from quantizer.graph.quantizable import QuantizableWeight, find_quantizable_weights
from quantizer.presets import PRESET_TIMES, make_recipe
from quantizer.progress import silent
from quantizer.recipe import decode_recipe
from quantizer.storage.scheme import GROUP_SIZES, QuantConfig, Scheme
from runtime.bundle import json_codec
from runtime.bundle.bundle import open_bundle
from runtime.cli.main import main
from runtime.errors import QuantizationError

MATRIX = QuantizableWeight("down", "down.weight", "linear", 576, 1536, transposed=True)
TEXT = split("random", np.random.default_rng(3).integers(3, 320, (6, 48)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_shipped_table_says_where_it_is_from_and_prices_every_candidate(target):
    table = read_costs(target)
    assert (table.target, table.source == "measured") == (target, target == "avx512")
    assert ("not measured" in table.how) == (table.source == "derived")
    times = [table.product(2048, 2048, bits, size) for bits in (4, 8) for size in GROUP_SIZES]
    assert times[:5] == sorted(times[:5], reverse=True)  # wider groups read fewer bytes
    assert all(four < eight for four, eight in zip(times[:5], times[5:], strict=True))


@pytest.mark.parametrize("target", ["avx2", "neon", "cuda"])
def test_derived_costs_are_bytes_over_bandwidth(target):
    table = read_costs(target)
    read = [cost for cost in table.kernels if cost.bytes_per_weight]
    rates = np.array([cost.bytes_per_weight / cost.ns_per_weight for cost in read])
    assert np.allclose(rates, rates[0], rtol=1e-3)
    assert table.kernel("MatMulNBits", 4, 32).bytes_per_weight == pytest.approx(
        0.5 + (2.5 if target == "cuda" else 8) / 32
    )


def test_residual_channels_and_padding_cost_time():
    table = read_costs("avx512")
    plain = decode_ns(MATRIX, QuantConfig(Scheme(4, 128)), table)
    assert decode_ns(MATRIX, QuantConfig(Scheme(4, 128), 128), table) > plain
    odd = replace(MATRIX, inputs=1537)
    assert decode_ns(odd, QuantConfig(Scheme(4, 128)), table) == pytest.approx(
        decode_ns(replace(MATRIX, inputs=1664), QuantConfig(Scheme(4, 128)), table)
    )
    assert decode_ns(replace(MATRIX, multiplied=False), QuantConfig(Scheme(4, 32)), table) < plain


def test_a_line_through_two_products():
    assert fit([(100, 60.0), (1000, 150.0), (10_000, 1050.0)]) == pytest.approx((0.1, 50.0))


def test_this_machine_is_measured_and_its_file_is_read(tmp_path):
    table = measure_kernels(silent, 1, Effort(0.001, 1, 1 << 20, ((64, 256), (512, 512))))
    assert {cost.operator for cost in table.kernels} == {"MatMul", "MatMulNBits", "Repeat", "GatherBlockQuantized"}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(json_codec.encode(table)))
    assert read_costs(str(path)) == table
    recipe = make_recipe(costs=str(path), time=0.9)
    assert recipe.time.table == table
    assert decode_recipe(json.loads(json.dumps(json_codec.encode(recipe)))) == recipe


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"costs": "avx1024"}, "neither a target"),
        ({"time": 0.9}, "on which target"),
        ({"costs": "avx2", "budget": 5.0}, "leave out one of the two"),
        ({"costs": "avx2", "preset": "fast"}, "nothing is chosen by cost"),
        ({"costs": "avx2", "time": 40.0}, "choose a number"),
        ({"outliers": 32, "residual_channels": 32}, "earlier name"),
        ({"colour": 1}, "no such choice"),
    ],
)
def test_contradictions_are_errors(choices, message, tiny_bundle, tmp_path):
    with pytest.raises(QuantizationError, match=message):
        quantizer.quantize(tiny_bundle, tmp_path / "q", **choices)
    assert not (tmp_path / "q").exists()


def test_a_budget_of_time_is_kept_and_more_of_it_loses_less(tiny_bundle, tmp_path):
    bundle, found = open_bundle(tiny_bundle), []
    graph = prefill_graph(bundle, load_graphs(bundle))
    sites = list(find_quantizable_weights(graph, bundle.manifest.architecture.vocab_size))
    for time in (0.98, 1.2):
        recipe = make_recipe(costs="avx2", time=time)
        result = quantize(tiny_bundle, tmp_path / str(time), recipe, text=TEXT, work=tmp_path / "work")
        stored = {tensor.name: tensor for tensor in result.manifest.quantization.tensors}
        table = read_costs("avx2")
        taken = sum(
            decode_ns(site, QuantConfig(Scheme(t.bits, t.group_size, t.symmetric), t.outliers), table)
            for site in sites
            for t in [stored[site.weight]]
        )
        assert taken <= time * plain_ns(sites, table) * 1.0001
        found.append(result.manifest.quality.kl)
    assert found[1] < found[0]
    with pytest.raises(QuantizationError, match="the fastest this bundle can become on avx2"):
        quantize(tiny_bundle, tmp_path / "no", make_recipe(costs="avx2", time=0.2), text=TEXT)


def test_presets_are_points_on_the_curve():
    times = [make_recipe(preset, costs="avx512").time.ratio for preset in ("small", "balanced", "accurate")]
    assert times == sorted(times) == sorted(PRESET_TIMES.values())


def test_bench_says_what_kernels_need():
    done = CliRunner().invoke(main, ["bench"])
    assert (done.exit_code, "--kernels" in done.output) == (2, True)
    assert CliRunner().invoke(main, ["bench", "bundle", "--kernels"]).exit_code == 2
    assert CliRunner().invoke(main, ["bench", "bundle", "-o", "costs.json"]).exit_code == 2
