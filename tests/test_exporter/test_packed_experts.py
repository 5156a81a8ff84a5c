"""Experts and per-layer tables by `export --quantize`: what quantizing the float bundle gives, and codes that are kept.

`ONNXLM_ALL_FAMILIES=1` tries every family with experts, in place of one of each kind.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_families import CASES, save_random

from exporter import ExportOptions, export
from quantizer.flow import quantize
from quantizer.presets import PRESETS

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
