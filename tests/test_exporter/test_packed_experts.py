"""Experts and per-layer tables by `export --quantize`: what quantizing the float bundle gives, and codes that are kept.

`ONNXLM_ALL_FAMILIES=1` tries every family with experts, in place of one of each kind.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from packed_weights import dequantize_packed
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_families import CASES, save_random

from exporter import ExportOptions, export
from quantizer.flow import quantize
from quantizer.presets import PRESETS
from quantizer.storage.packing import PackedMatrix

FEW = ["mixtral", "gpt_oss", "deepseek_v3 half rope", "granitemoe", "gemma4_text experts", "gemma3n_text"]


def has_stacks(case):
    experts = any("expert" in key for key in case.config()) and case.config().get("num_local_experts") != 0
    return experts or case.model_type == "gemma3n_text"


STACKS = [case for case in CASES if has_stacks(case)]
TRIED = [case for case in STACKS if os.environ.get("ONNXLM_ALL_FAMILIES") or str(case) in FEW]


@pytest.mark.parametrize("case", TRIED, ids=str)
def test_packing_while_reading_is_quantizing_afterwards(case, tmp_path):
    save_random(case, tmp_path / "checkpoint")
    export(tmp_path / "checkpoint", tmp_path / "float", ExportOptions(verify="none"))
    theirs = quantize(tmp_path / "float", tmp_path / "theirs", PRESETS["fast"]).manifest
    ours = export(tmp_path / "checkpoint", tmp_path / "ours", ExportOptions(quantize="int4", verify="none")).manifest
    assert ours.files["weights.bin"] == theirs.files["weights.bin"]
    assert ours.files["decode.onnx"] == theirs.files["decode.onnx"]
    assert [t.name for t in ours.quantization.tensors] == [t.name for t in theirs.quantization.tensors]
    assert any("experts" in t.name or "per_layer" in t.name for t in ours.quantization.tensors)


def test_only_what_chooses_experts_stays_in_floating_point(tmp_path):
    """Gemma 3n's gates of per-layer inputs choose nothing; a router does, and a shared expert's share is one row."""
    for name, kept in (("gemma3n_text", {"per_layer_input.gate"}), ("qwen2_moe", set())):
        case = next(case for case in STACKS if case.model_type == name)
        save_random(case, tmp_path / name)
        manifest = export(
            tmp_path / name, tmp_path / f"{name}.b", ExportOptions(quantize="int4", verify="none")
        ).manifest
        gates = {t.name.removesuffix(".weight").split(".", 3)[-1] for t in manifest.quantization.tensors}
        assert {gate for gate in gates if gate.endswith("gate")} == kept


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)  # OCP MX specification 1.0


def mxfp4(shape, rng):
    """Blocks and scales of experts `[E, in, out]` as gpt-oss stores them, and their values."""
    count, inputs, rows = shape
    nibbles = rng.integers(0, 16, (count, rows, inputs // 32, 32), np.uint8)
    scales = rng.integers(118, 122, (count, rows, inputs // 32), np.uint8)
    values = E2M1[nibbles] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4, scales, values.reshape(count, rows, inputs)


def test_experts_in_mxfp4_keep_their_values(tmp_path):
    """gpt-oss as it is published: whatever width the other matrices get, experts lose nothing."""
    save_random(next(case for case in CASES if str(case) == "gpt_oss"), tmp_path / "checkpoint")
    path, config = tmp_path / "checkpoint" / "model.safetensors", tmp_path / "checkpoint" / "config.json"
    tensors, wanted, rng = load_file(path), {}, np.random.default_rng(1)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        made = mxfp4(tensors.pop(name).shape, rng)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"], wanted[f"{name}.codes"] = made
    save_file(tensors, path, metadata={"format": "pt"})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}))
    report = export(tmp_path / "checkpoint", tmp_path / "q", ExportOptions(quantize="int4", verify="none"))
    arrays = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "q" / "decode.onnx").graph.initializer}
    assert {outcome.how for outcome in report.outcomes if "experts" in outcome.name} == {"kept"}
    assert {tensor.bits for tensor in report.manifest.quantization.tensors} == {4, 8}
    for name, values in wanted.items():
        packed = zip(arrays[name], arrays[name.replace(".codes", ".scales")], strict=True)
        read = [dequantize_packed(PackedMatrix(*pair, None), 8, 32, values.shape[-1]) for pair in packed]
        np.testing.assert_array_equal(np.stack(read), values)
