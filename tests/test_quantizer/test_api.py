"""`import quantizer`: the commands as functions, with `str` or `Path`."""

import numpy as np
import pytest
from click.testing import CliRunner

import exporter
import quantizer
from quantizer.cli.eval import evaluate as eval_command
from runtime.errors import QuantizationError


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "ids.npy"
    np.save(path, np.random.default_rng(0).integers(0, 90, 256))
    return path


def test_quantize_and_evaluate(tiny_bundle, tmp_path, text):
    result = quantizer.quantize(str(tiny_bundle), str(tmp_path / "q4"), bits=4, group_size=32)
    again = quantizer.quantize(tiny_bundle, tmp_path / "again", tmp_path / "q4")  # by the recipe of that bundle
    assert [o.tensor.bits for o in result.outcomes if o.tensor] == [o.tensor.bits for o in again.outcomes if o.tensor]
    assert (tmp_path / "q4" / "weights.bin").read_bytes() == (tmp_path / "again" / "weights.bin").read_bytes()
    scores = quantizer.evaluate(str(tmp_path / "q4"), str(tiny_bundle), str(text), context=64)
    same = quantizer.evaluate(tiny_bundle, tiny_bundle, text, context=64)
    assert scores.tokens == same.tokens == 256
    assert abs(same.kl) < 1e-6 < 1e-4 < scores.kl


def test_memory_is_kept_to_and_what_a_run_takes_is_told_first(tiny_bundle, tmp_path):
    told = []
    with pytest.raises(QuantizationError, match=r"of memory are needed, and 976\.6 KiB may be used"):
        quantizer.quantize(tiny_bundle, tmp_path / "no", bits=4, memory=10**6, on_forecast=told.append)
    assert not (tmp_path / "no").exists()
    quantizer.quantize(tiny_bundle, tmp_path / "yes", bits=4, memory=told[0].peak_memory, on_forecast=told.append)
    assert [phase.name for phase in told[0].phases] == [phase.name for phase in told[1].phases]


def test_a_recipe_says_everything(tiny_bundle, tmp_path):
    recipe = quantizer.Recipe(
        quantizer.QuantConfig(quantizer.Scheme(4)), quantizer.QuantConfig(quantizer.Scheme(8, 32, True))
    )
    with pytest.raises(QuantizationError, match="leave out the other options"):
        quantizer.quantize(tiny_bundle, tmp_path / "no", recipe, bits=4)
    assert not (tmp_path / "no").exists()
    assert quantizer.quantize(tiny_bundle, tmp_path / "yes", recipe).manifest.quantization.recipe["method"] == "rtn"


def test_a_cache_in_codes(tiny_bundle, tmp_path, text):
    quality = quantizer.quantize_cache(
        str(tiny_bundle), str(tmp_path / "kv8"), calibration=str(text), calibration_tokens=256
    )
    assert 0 <= quality.kl < 0.05  # of noise, which a tiny model knows nothing of
    assert quality.top1 > 0.8


def test_half_precision_is_evaluated(tiny_checkpoint, tmp_path, text):
    for name, kind in (("full", "float32"), ("half", "float16")):
        exporter.export(tiny_checkpoint, tmp_path / name, exporter.ExportOptions(dtype=kind, verify="none"))
    assert abs(quantizer.evaluate(tmp_path / "half", tmp_path / "full", text, context=64).kl) < 1e-3
    assert quantizer.evaluate(tmp_path / "half", tmp_path / "half", text, context=64).kl == pytest.approx(0, abs=1e-6)


def test_a_report_that_cannot_be_written_is_found_first(tiny_bundle, tmp_path):
    arguments = [tiny_bundle, "--reference", tiny_bundle, "--text", tmp_path / "nothing.txt"]
    for html in (tmp_path / "no" / "report.html", tmp_path):
        result = CliRunner().invoke(eval_command, [*map(str, arguments), "--html", str(html)])
        assert result.exit_code == 1
        assert type(result.exception) is QuantizationError
        assert "cannot be written" in str(result.exception)
        assert "nothing.txt" not in str(result.exception)
