"""Experts and per-layer tables by `export --quantize`: what quantizing the float bundle gives, and codes that are kept."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_families import CASES, save_random

from exporter import ExportOptions, export
from models.families.registry import describe
from quantizer.flow import quantize
from quantizer.presets import PRESETS


def has_experts(case):
    keys = case.config()
    return any("expert" in key for key in keys) and keys.get("num_local_experts") != 0


# Sizes that groups of 16 divide, as those of every published model.
LARGER = {"intermediate_size": 96, "hidden_size": 64}
WITH_EXPERTS = [case for case in CASES if has_experts(case)]
PER_LAYER = [case for case in CASES if case.model_type == "gemma3n_text"]


@pytest.mark.parametrize("case", [*WITH_EXPERTS, *PER_LAYER], ids=str)
def test_packing_while_reading_is_quantizing_afterwards(case, tmp_path):
    save_random(case, tmp_path / "checkpoint")
    export(tmp_path / "checkpoint", tmp_path / "float", ExportOptions(verify="none"))
    theirs = quantize(tmp_path / "float", tmp_path / "theirs", PRESETS["fast"]).manifest
    ours = export(tmp_path / "checkpoint", tmp_path / "ours", ExportOptions(quantize="int4", verify="none")).manifest
    assert ours.files["weights.bin"] == theirs.files["weights.bin"]
    assert ours.files["decode.onnx"] == theirs.files["decode.onnx"]
    assert [t.name for t in ours.quantization.tensors] == [t.name for t in theirs.quantization.tensors]
