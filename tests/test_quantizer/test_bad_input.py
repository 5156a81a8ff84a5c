"""What cannot work is refused in one clear line, with an exit code, and leaves no bundle behind."""

import subprocess
import sys
from shutil import copytree

import numpy as np
import pytest
from click.testing import CliRunner

from quantizer.calibration.data import split
from quantizer.graph.graphs import load_graphs
from quantizer.kv_cache.quantize import quantize_cache
from runtime.bundle.bundle import open_bundle
from runtime.cli.main import main

TOKENS = np.random.default_rng(3).integers(3, 320, 600)
RECIPE = "[linear.scheme]\nbits = {bits}\n[embedding.scheme]\nbits = 8\nsymmetric = true\n"


@pytest.fixture
def refused(tmp_path):
    """Call `onnxlm quantize` on a bundle; return what it says, having checked what it leaves."""

    def refused(source, *options):
        target = tmp_path / "out" / "q"
        done = CliRunner().invoke(main, ["quantize", str(source), "-o", str(target), *map(str, options)])
        assert done.exit_code == 1, done.output
        assert not target.exists()
        left = {path.name for path in target.parent.iterdir()} if target.parent.exists() else set()
        assert left <= {".q.work"}
        return done.stderr

    return refused


TEXTS = {
    "empty.txt": ("", "no text in it"),
    "tiny.txt": ("Too short.", "tokens are too few to calibrate on"),
    "empty.jsonl": ("\n\n", "no text in it"),
    "broken.jsonl": ('{"text": "a"}\n{"text": ', "line 2 is not JSON"),
    "other.jsonl": ('{"question": "a"}', 'neither a "text" nor "messages"'),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_cannot_calibrate(name, refused, tiny_bundle, tmp_path):
    content, said = TEXTS[name]
    (tmp_path / name).write_text(content)
    assert said in refused(tiny_bundle, "--calibration", tmp_path / name)


ARRAYS = {
    "above": (TOKENS + 5000, "outside this model's vocabulary of 320"),
    "below": (TOKENS - 400, "outside this model's vocabulary"),
    "floats": (TOKENS / 2, "holds float64 instead of token ids"),
    "none": (TOKENS[:0], "no text in it"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_tokens_of_another_tokenizer(name, refused, tiny_bundle, tmp_path):
    array, said = ARRAYS[name]
    np.save(tmp_path / "tokens.npy", array)
    assert said in refused(tiny_bundle, "--calibration", tmp_path / "tokens.npy")


def test_text_that_is_not_there_or_not_text(refused, tiny_bundle, tmp_path):
    assert "no such file" in refused(tiny_bundle, "--calibration", tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    assert "cannot be read" in refused(tiny_bundle, "--calibration", tmp_path / "binary.txt")
    assert "cannot be read" in refused(tiny_bundle, "--calibration", tmp_path / "broken.npy")


@pytest.mark.parametrize("weight", ["layers.1.mlp.down_proj", "layers.0.input_layernorm", "embed_tokens"])
@pytest.mark.parametrize("bits", [(), ("--bits", "4")])
def test_weights_that_are_not_numbers(weight, bits, refused, tiny_bundle, tmp_path):
    copytree(tiny_bundle, tmp_path / "broken")
    tensor = load_graphs(open_bundle(tiny_bundle)).initializers()[f"model.{weight}.weight"]
    with (tmp_path / "broken" / "weights.bin").open("r+b") as file:
        file.seek(tensor.offset + 40)
        file.write(np.array([np.nan], np.float32).tobytes())
    np.save(tmp_path / "tokens.npy", TOKENS)
    said = refused(tmp_path / "broken", *(bits or ("--calibration", tmp_path / "tokens.npy")))
    assert "NaN" in said
    assert "checkpoint is broken" in said


def test_a_bundle_that_is_quantized_already(refused, tiny_bundle, tmp_path):
    done = CliRunner().invoke(main, ["quantize", str(tiny_bundle), "-o", str(tmp_path / "once"), "--bits", "8"])
    assert done.exit_code == 0
    assert "is quantized already" in refused(tmp_path / "once")


@pytest.mark.parametrize("budget", ["3.9", "1.5"])
def test_a_budget_that_nothing_keeps(budget, refused, tiny_bundle):
    """It is known before anything is measured: no text is needed to say so."""
    assert "the smallest this bundle can become is" in refused(tiny_bundle, "--budget", budget)


@pytest.mark.parametrize("budget", ["0.5", "-4", "64"])
def test_a_budget_that_is_none(budget, refused, tiny_bundle):
    assert "choose a number between" in refused(tiny_bundle, "--budget", budget)


def test_patterns_that_match_nothing_or_everything(refused, tiny_bundle):
    assert "matches no matrix. Near: model.layers.0.mlp.down_proj" in refused(
        tiny_bundle, "--bits", "4", "--exclude", "model.layers.0.mlp.down"
    )
    assert "no matrix is left" in refused(tiny_bundle, "--bits", "4", "--exclude", "*")


RECIPES = {
    "not TOML": "linear = [",
    "no recipe": "bits = 4\n",
    "bits of 5": RECIPE.format(bits=5),
    "an unknown key": RECIPE.format(bits=4) + "colour = 1\n",
    "a word for a number": RECIPE.format(bits='"four"'),
}


@pytest.mark.parametrize("name", RECIPES)
def test_broken_recipes(name, refused, tiny_bundle, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPES[name])
    assert "not a recipe" in refused(tiny_bundle, "--recipe", tmp_path / "recipe.toml")


def test_recipes_that_are_no_text(refused, tiny_bundle, tmp_path):
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe")
    assert "not a recipe" in refused(tiny_bundle, "--recipe", tmp_path / "recipe.toml")
    assert "not a recipe" in refused(tiny_bundle, "--recipe", tmp_path / "none.toml")


FULL = """
import resource, sys
from runtime.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
main(sys.argv[2:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes")
@pytest.mark.parametrize(
    ("limit", "method"), [(0, ["--method", "gptq"]), (30_000, ["--method", "gptq"]), (30_000, ["--bits", "4"])]
)
def test_a_full_disk(limit, method, tiny_bundle, tmp_path):
    """No file may be longer than the limit: with 0 nothing can be kept, with 30,000 not the weights."""
    np.save(tmp_path / "tokens.npy", TOKENS)
    text = ["--calibration", tmp_path / "tokens.npy"] if "gptq" in method else []
    arguments = ["quantize", tiny_bundle, "-o", tmp_path / "q", *method, *text]
    command = [sys.executable, "-c", FULL, limit, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "cannot be written (File too large)" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"tokens.npy", ".q.work"}


def test_a_quantized_cache_is_no_obstacle(tiny_bundle, tmp_path):
    text = split("random", TOKENS[:512].reshape(8, 64))
    quantize_cache(tiny_bundle, tmp_path / "kv", 8, text)
    done = CliRunner().invoke(main, ["quantize", str(tmp_path / "kv"), "-o", str(tmp_path / "q"), "--bits", "4"])
    assert done.exit_code == 0, done.output
    assert open_bundle(tmp_path / "q").manifest.kv_cache.dtype == "int8"


def test_a_quantized_cache_whose_channels_would_move(refused, tiny_bundle, tmp_path):
    quantize_cache(tiny_bundle, tmp_path / "kv", 8, split("random", TOKENS[:512].reshape(8, 64)))
    assert "--kv int8" in refused(tmp_path / "kv", "--method", "gptq")
