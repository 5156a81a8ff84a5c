"""`export --quantize`: what quantizing the float bundle gives, without one; little memory, and nothing left behind."""

import json
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from exporter import ExportOptions, export
from exporter.checkpoint import open_checkpoint, row_blocks
from exporter.checkpoint.row_blocks import row_blocks as blocks_of
from quantizer.flow import quantize
from quantizer.presets import PRESETS, Storage, make_recipe
from runtime.errors import BundleError, OptionError

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("width", "recipe"), [("int4", PRESETS["fast"]), ("int8", make_recipe(storage=Storage(bits=8)))]
)
def test_packing_while_reading_is_quantizing_afterwards(tiny_checkpoint, tiny_bundle, tmp_path, width, recipe):
    ours = export(tiny_checkpoint, tmp_path / "ours", ExportOptions(quantize=width)).manifest
    theirs = quantize(tiny_bundle, tmp_path / "theirs", recipe).manifest
    assert ours.files["weights.bin"] == theirs.files["weights.bin"]
    assert ours.files["decode.onnx"] == theirs.files["decode.onnx"]
    assert ours.quantization.recipe == theirs.quantization.recipe
    assert [t.name for t in ours.quantization.tensors] == [t.name for t in theirs.quantization.tensors]
    assert ours.verification.method == "self-consistency"


def test_kept_codes_are_not_packed_again(make_gguf, tmp_path):
    _, source = make_gguf("Q8_0")
    report = export(source, tmp_path / "bundle", ExportOptions(quantize="int4"))
    assert {tensor.bits for tensor in report.manifest.quantization.tensors} == {8}
    report = export(source, tmp_path / "anew", ExportOptions(quantize="int4", requantize=True))
    assert {tensor.bits for tensor in report.manifest.quantization.tensors} == {4, 8}


def test_blocks_of_rows_are_the_matrix(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_VALUES", 1000)
    table = open_checkpoint(tiny_checkpoint).tensors["model.embed_tokens.weight"]
    blocks = [block.read() for block in blocks_of(table)]
    assert {len(block) for block in blocks} == {15, 5}
    np.testing.assert_array_equal(np.concatenate(blocks), table.read())


def test_too_little_disk_is_said_before_anything_is_written(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("exporter.weights.estimate.shutil.disk_usage", lambda _folder: Usage(0, 0, 1 << 20))
    with pytest.raises(BundleError, match=r"needs about \d MB, and .* has 1 MB free"):
        export(tiny_checkpoint, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_packed_weights_are_not_compared_with_others():
    with pytest.raises(OptionError, match="onnxlm eval"):
        ExportOptions(quantize="int4", verify="transformers")


BENCH = Path(__file__).parents[1] / "bench" / "export_memory.py"
SIZES = {
    "table": {"layers": 1, "hidden": 512, "inner": 1024, "vocab": 65536},
    "deep": {"layers": 8, "hidden": 1024, "inner": 4096, "vocab": 65536},
}


@pytest.fixture
def sparse(tmp_path):
    """A bfloat16 checkpoint that takes no disk."""
    make = runpy.run_path(str(BENCH))["sparse_checkpoint"]
    return lambda size: make(tmp_path / "checkpoint", **SIZES[size])


def start(source, output, *options):
    """The export in a process of its own, whose memory can be measured and which can be interrupted."""
    # A run of these tests in the background has SIGINT ignored, and a child would inherit that.
    code = (
        "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(BENCH), "--source", str(source), "--output", str(output), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("quantize", "allowed"), [("int4", 300e6), ("float", 150e6)])
def test_a_large_table_is_never_in_memory_as_floats(sparse, tmp_path, quantize, allowed):
    """The promise is 1.5 times the largest tensor and 300 MB; of the float table, 134 MB, nothing is kept at all."""
    child = start(sparse("table"), tmp_path / "bundle", "--quantize", quantize)
    output, errors = child.communicate()
    assert child.returncode == 0, errors
    found = json.loads(output)
    assert found["peak_rss_bytes"] - found["rss_before_bytes"] < allowed


def test_weights_are_read_once_and_hashed_once(sparse, tmp_path):
    """What is written is hashed, too."""
    child = start(sparse("deep"), tmp_path / "bundle", "--quantize", "int4", "--method", "rtn")
    found = json.loads(child.communicate()[0])
    assert found["read_bytes"] < 2 * found["checkpoint_bytes"] + found["weights_bytes"] + 60e6  # libraries


def test_first_rows_may_ask_for_other_scales_than_the_last(tiny_checkpoint, make_bundle, tmp_path, monkeypatch):
    """Half precision holds no scales of tiny weights: those of the first block alone would have other codes."""
    monkeypatch.setattr("exporter.weights.pack.BLOCK_VALUES", 512)
    source = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    tensors = load_file(source / "model.safetensors")
    for name in ("model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight"):
        tensors[name][: len(tensors[name]) // 2] *= 1e-4
    tensors["model.layers.1.mlp.down_proj.weight"] *= 1e-4
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    ours = export(source, tmp_path / "ours", ExportOptions(quantize="int4", verify="none")).manifest
    theirs = quantize(make_bundle(source), tmp_path / "theirs", PRESETS["fast"]).manifest
    assert ours.files["weights.bin"] == theirs.files["weights.bin"]


def test_an_interrupt_leaves_nothing(sparse, tmp_path):
    child = start(sparse("deep"), tmp_path / "out" / "bundle")
    while child.poll() is None and not list(tmp_path.glob("out/.bundle.*/weights.bin")):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate()
    assert "KeyboardInterrupt" in errors
    assert not list((tmp_path / "out").iterdir())


PEAKS = runpy.run_path(str(BENCH.with_name("export_peak.py")))


@pytest.mark.parametrize(
    "options", [["--verify", "none"], ["--verify", "none", "--quantize", "int4", "--method", "rtn"]]
)
def test_the_estimate_is_the_peak(tmp_path, options):
    """Of memory that is no copy of a file; tests/bench/export_peak.py has all kinds of checkpoints.

    How many threads pack at the same moment moves the peak by a fifth; an estimate may be above it, not below.
    """
    found = PEAKS["measure"](PEAKS["tied"](tmp_path / "checkpoint"), tmp_path / "bundle", *options)
    assert 0.9 < found["ratio"] < 1.35
