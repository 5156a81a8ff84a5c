"""`onnxlm quantize` as a user calls it."""

import json

import pytest
from click.testing import CliRunner

import quantizer
from runtime.cli.main import main


def call(*arguments):
    return CliRunner().invoke(main, ["quantize", *map(str, arguments)])


def test_quantize_prints_a_table(tiny_bundle, tmp_path):
    done = call(tiny_bundle, "-o", tmp_path / "q", "--bits", "4", "--group-size", "32")
    assert done.exit_code == 0, done.output
    assert "bits per weight" in done.stdout
    assert "int4 g32 asymmetric" in done.stdout


def test_json_is_data(tiny_bundle, tmp_path):
    done = call(tiny_bundle, "-o", tmp_path / "q", "--bits", "8", "--symmetric", "--json")
    data = json.loads(done.stdout)
    assert data["bits_per_weight"] > 8
    assert {kind["stored"] for kind in data["kinds"]} == {"int8 g32 symmetric"}


def test_errors_are_one_line(tiny_bundle, tmp_path):
    done = call(tiny_bundle, "-o", tmp_path / "q", "--exclude", "nothing.like.this")
    assert done.exit_code == 1
    assert done.stderr.strip().startswith("Error: exclude: 'nothing.like.this' matches no matrix")
    assert call(tiny_bundle, "-o", tmp_path / "q", "--group-size", "24").exit_code == 2


@pytest.mark.parametrize("value", ["many", "-1", "1.5", ""])
def test_outliers_that_are_no_number(value, tiny_bundle, tmp_path):
    done = call(tiny_bundle, "-o", tmp_path / "q", "--outliers", value)
    assert done.exit_code == 2
    assert f"{value!r} is neither a number of inputs (0 or more) nor 'auto'" in done.stderr


def test_help_has_an_example():
    assert "onnxlm quantize smol -o smol-int4" in call("--help").stdout


def test_eval_prints_figures_and_gates(tiny_bundle, tmp_path):
    call(tiny_bundle, "-o", tmp_path / "q", "--bits", "8")
    (tmp_path / "t.txt").write_text("some text to measure on, " * 30)
    arguments = ["eval", tmp_path / "q", "--reference", tiny_bundle, "--text", tmp_path / "t.txt", "--context", "64"]
    done = CliRunner().invoke(main, [*map(str, arguments), "--json", "--abilities"])
    figures = quantizer.evaluate(tmp_path / "q", tiny_bundle, tmp_path / "t.txt", context=64)
    assert json.loads(done.stdout)["kl"] == pytest.approx(figures.kl, rel=1e-6)
    assert {ability["name"] for ability in json.loads(done.stdout)["abilities"]} == {"arithmetic", "copying"}
    assert CliRunner().invoke(main, [*map(str, arguments), "--fail-if", "kl>1e-9"]).exit_code == 1


def test_a_missed_gate_writes_nothing(tiny_bundle, tmp_path):
    (tmp_path / "t.txt").write_text("some text to measure on, " * 30)
    done = call(
        tiny_bundle, "-o", tmp_path / "q", "--bits", "4", "--calibration", tmp_path / "t.txt", "--fail-if", "kl>1e-9"
    )
    assert done.exit_code == 1
    assert "Nothing was written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.txt"]


BUDGET = ["--budget", "7.5", "--seed", "3", "--exclude", "*.0.self_attn.o_proj"]


@pytest.mark.parametrize("options", [BUDGET, ["--bits", "4", "--group-size", "16", "--outliers", "auto"]])
def test_a_bundle_s_recipe_makes_it_again_bit_by_bit(options, tiny_bundle, tmp_path):
    """Text of the model's own, sensitivity, a budget, GPTQ: the same seed gives the same file."""
    options = [*options, "--calibration-tokens", "512"]
    assert call(tiny_bundle, "-o", tmp_path / "once", *options).exit_code == 0
    done = call(tiny_bundle, "-o", tmp_path / "again", "--recipe", tmp_path / "once")
    assert done.exit_code == 0, done.output
    for name in ("weights.bin", "prefill.onnx", "decode.onnx"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
    once, again = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("once", "again"))
    assert (once["quantization"], once["quality"]) == (again["quantization"], again["quality"])


def test_a_recipe_of_what_has_none(tiny_bundle, tmp_path):
    done = call(tiny_bundle, "-o", tmp_path / "q", "--recipe", tiny_bundle)
    assert done.exit_code == 1
    assert "is not quantized: it holds no recipe" in done.stderr
