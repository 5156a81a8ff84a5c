"""Quantized embedding models and rerankers, judged by the cosine with the float ones."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from quantizer.api import quantize
from runtime.bundle.bundle import open_bundle
from runtime.cli.main import main
from runtime.embedder import Embedder
from runtime.errors import QuantizationError


def test_eight_bits_are_close_and_the_manifest_says_how_close(embedder_bundle, tmp_path):
    quantize(embedder_bundle, tmp_path / "int8", bits=8)
    quality = open_bundle(tmp_path / "int8").manifest.task.quality
    assert 0.98 < quality.cosine_min < quality.cosine < 1
    with Embedder(embedder_bundle) as floats, Embedder(tmp_path / "int8") as codes:
        assert floats.embed("hello") @ codes.embed("hello") > 0.98


def test_gptq_calibrates_on_a_text_and_beats_rounding(embedder_bundle, tmp_path):
    ids = np.random.default_rng(0).integers(4, 300, 4096)
    np.save(tmp_path / "text.npy", ids)
    cosines = {}
    for method, text in (("rtn", None), ("gptq", tmp_path / "text.npy")):
        quantize(embedder_bundle, tmp_path / method, method=method, bits=4, calibration=text)
        cosines[method] = open_bundle(tmp_path / method).manifest.task.quality.cosine
    assert cosines["gptq"] > cosines["rtn"]


def test_a_reranker_is_judged_by_its_scores(reranker_bundle, tmp_path):
    quantize(reranker_bundle, tmp_path / "int8", bits=8, fail_if="max_difference>1")
    assert open_bundle(tmp_path / "int8").manifest.task.quality.cosine > 0.99


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--preset fast"),
        ({"bits": 8, "kv": "int8"}, "Leave out --kv"),
        ({"method": "gptq"}, "--calibration FILE"),
        ({"bits": 8, "fail_if": "kl>0.1"}, "cosine"),
        ({"bits": 4, "fail_if": "cosine<0.99999"}, "below 0.99999"),
    ],
)
def test_what_cannot_be_is_refused(options, words, embedder_bundle, tmp_path):
    with pytest.raises(QuantizationError, match=words):
        quantize(embedder_bundle, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_cosine_is_not_of_a_model_that_generates(tiny_bundle, tmp_path):
    with pytest.raises(QuantizationError, match="embeddings and scores"):
        quantize(tiny_bundle, tmp_path / "out", bits=8, fail_if="cosine<0.9")


def test_eval_compares_lines(embedder_bundle, tmp_path):
    quantize(embedder_bundle, tmp_path / "int8", bits=8)
    (tmp_path / "texts.txt").write_text("hello\n\nthe rain in the other one\n")
    folders = [str(tmp_path / "int8"), "--reference", str(embedder_bundle)]
    arguments = ["eval", *folders, "--text", str(tmp_path / "texts.txt")]
    shown = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
    assert json.loads(shown.stdout)["texts"] == 2
    assert CliRunner().invoke(main, [*arguments, "--fail-if", "cosine<1.1"]).exit_code == 1


@pytest.mark.parametrize("command", ["bench", "plan", "run", "quantize-kv"])
def test_other_commands_name_the_one_to_use(command, embedder_bundle, tmp_path):
    more = {"run": ["hi"], "quantize-kv": ["-o", str(tmp_path / "kv"), "--calibration", __file__]}.get(command, [])
    done = CliRunner().invoke(main, [command, str(embedder_bundle), *more])
    assert done.exit_code == 1
    assert "onnxlm embed" in done.output
