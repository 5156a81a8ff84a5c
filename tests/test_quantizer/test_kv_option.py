"""`quantize --kv`: weights and cache in one run, the same as one after the other; all of it, or nothing."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from quantizer.calibration.data import split
from quantizer.flow import quantize
from quantizer.kv_cache.quantize import quantize_cache
from quantizer.presets import Storage, make_recipe, read_recipe
from runtime import QuantizationError
from runtime.bundle.bundle import open_bundle, write_manifest
from runtime.cli.main import main

TEXT = split("random", np.random.default_rng(0).integers(4, 320, (6, 64)))
FILES = ("weights.bin", "prefill.onnx", "decode.onnx")


def call(*arguments):
    return CliRunner().invoke(main, ["quantize", *map(str, arguments)])


def contents(folder):
    return [(folder / name).read_bytes() for name in FILES]


@pytest.mark.parametrize("recipe", [make_recipe(preset="fast"), make_recipe(method="gptq", storage=Storage(bits=4))])
def test_it_is_quantize_and_then_quantize_kv(tiny_bundle, tmp_path, recipe):
    """With permuted and smoothed values, too: scales are those of the weights as they are stored."""
    quantize(tiny_bundle, tmp_path / "weights", recipe, text=TEXT)
    quantize_cache(tmp_path / "weights", tmp_path / "after", 8, TEXT)
    result = quantize(tiny_bundle, tmp_path / "both", replace(recipe, kv="int8"), text=TEXT)
    assert contents(tmp_path / "both") == contents(tmp_path / "after")
    assert result.manifest.kv_cache == open_bundle(tmp_path / "after").manifest.kv_cache
    assert result.manifest.quality.kl != open_bundle(tmp_path / "weights").manifest.quality.kl


def test_a_bundle_s_recipe_makes_it_again_bit_by_bit(tiny_bundle, tmp_path):
    once, again = tmp_path / "once", tmp_path / "again"
    done = call(tiny_bundle, "-o", once, "--bits", 8, "--kv", "int4", "--calibration-tokens", 512, "--seed", 3)
    assert done.exit_code == 0, done.output
    assert call(tiny_bundle, "-o", again, "--recipe", once).exit_code == 0
    assert contents(again) == contents(once)
    manifests = [open_bundle(folder, verify=True).manifest for folder in (once, again)]
    assert manifests[0] == manifests[1]
    assert (manifests[0].quantization.recipe["kv"], manifests[0].kv_cache.stored_bits) == ("int4", 4)


def test_a_missed_gate_writes_nothing(tiny_bundle, tmp_path):
    """The gate is that of the whole bundle: its weights alone would pass."""
    np.save(tmp_path / "ids.npy", TEXT.chunks)
    options = [tiny_bundle, "-o", tmp_path / "q", "--bits", 8, "--calibration", tmp_path / "ids.npy"]
    done = call(*options, "--kv", "int4", "--fail-if", "kl>0.05")
    assert (done.exit_code, [path.name for path in tmp_path.iterdir()]) == (1, ["ids.npy"])
    assert call(*options, "--fail-if", "kl>0.05").exit_code == 0


def test_what_cannot_be_stored_is_refused_before_any_work(tiny_bundle, tmp_path):
    quantize_cache(tiny_bundle, tmp_path / "kv", 8, TEXT)
    done = call(tmp_path / "kv", "-o", tmp_path / "q", "--kv", "int4")
    assert (done.exit_code, [path.name for path in tmp_path.iterdir()]) == (1, ["kv"])
    assert "keys and values are int8 already" in done.stderr


def test_bundles_of_other_machines_are_refused_before_any_work(tiny_bundle, tmp_path):
    shutil.copytree(tiny_bundle, tmp_path / "source")
    manifest = open_bundle(tiny_bundle).manifest
    write_manifest(tmp_path / "source", replace(manifest, target=replace(manifest.target, provider="cuda")))
    with pytest.raises(QuantizationError, match="built for cuda; this measures on cpu only"):
        quantize(tmp_path / "source", tmp_path / "q", make_recipe(preset="fast", kv="int8"))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_run_goes_on_with_another_cache(tiny_bundle, tmp_path):
    """What was measured for weights is used again, whatever becomes of keys and values."""
    said, recipe = [], make_recipe(budget=7.5)

    def interrupted(doing, done, total):
        said.append(doing)
        if doing == "measuring keys and values":
            raise KeyboardInterrupt

    options = {"text": TEXT, "work": tmp_path / "work"}
    with pytest.raises(KeyboardInterrupt):
        quantize(tiny_bundle, tmp_path / "q", replace(recipe, kv="int4"), **options, progress=interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "work" / "matrices").iterdir()}
    said.clear()
    with pytest.raises(KeyboardInterrupt):
        quantize(tiny_bundle, tmp_path / "q", replace(recipe, kv="int8"), **options, progress=interrupted)
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "work" / "matrices").iterdir()}
    assert not any(doing.startswith("measuring model") for doing in said)


def test_old_recipes_are_read(tmp_path):
    (tmp_path / "r.toml").write_text(
        "[linear]\nscheme = {bits = 4}\n[embedding]\nscheme = {bits = 8, symmetric = true}\n"
    )
    assert read_recipe(tmp_path / "r.toml").kv is None
    (tmp_path / "r.toml").write_text('kv = "int3"\n' + (tmp_path / "r.toml").read_text())
    with pytest.raises(QuantizationError, match="kv"):
        read_recipe(tmp_path / "r.toml")


def test_text_for_the_cache_alone_is_short():
    assert make_recipe(preset="fast", kv="int8").calibration_tokens == 8192
    assert make_recipe(preset="fast", kv="int8", calibration="t.txt").calibration_tokens == 16384


def test_quantize_kv_is_part_of_the_recipe(tiny_bundle, tmp_path):
    np.save(tmp_path / "ids.npy", np.random.default_rng(1).integers(4, 320, 2048))
    kv = ["quantize-kv", str(tmp_path / "weights"), "-o", str(tmp_path / "once"), "--bits", "4"]
    assert call(tiny_bundle, "-o", tmp_path / "weights", "--bits", 8).exit_code == 0
    done = CliRunner().invoke(main, [*kv, "--calibration", str(tmp_path / "ids.npy"), "--calibration-tokens", "1024"])
    assert done.exit_code == 0, done.output
    done = call(tiny_bundle, "-o", tmp_path / "again", "--recipe", tmp_path / "once")
    assert done.exit_code == 0, done.output
    assert contents(tmp_path / "again") == contents(tmp_path / "once")


def test_another_text_than_the_recipe_s_is_refused(tiny_bundle, tmp_path):
    ids = tmp_path / "ids.npy"
    np.save(ids, TEXT.chunks)
    made = call(tiny_bundle, "-o", tmp_path / "q", "--bits", 8, "--kv", "int8", "--calibration", ids)
    assert made.exit_code == 0, made.output
    assert call(tiny_bundle, "-o", tmp_path / "same", "--recipe", tmp_path / "q").exit_code == 0
    np.save(ids, TEXT.chunks + 1)
    refused = call(tiny_bundle, "-o", tmp_path / "other", "--recipe", tmp_path / "q")
    assert (refused.exit_code, (tmp_path / "other").exists()) == (1, False)
    assert "is not the text that the recipe was made with" in refused.output


def test_other_words_of_the_model_are_told(tiny_bundle, tmp_path, caplog):
    recipe = replace(make_recipe(preset="fast"), kv="int8", calibration_tokens=512, tokens_sha256="0" * 64)
    quantize(tiny_bundle, tmp_path / "q", recipe)
    assert "the model wrote other text than when the recipe was made" in caplog.text
