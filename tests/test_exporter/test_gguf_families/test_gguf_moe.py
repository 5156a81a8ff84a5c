"""Every family with experts that GGUF knows comes back whole from a converted file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from packed_weights import dequantize_packed

from exporter import ExportOptions, export
from exporter.checkpoint.gguf.registry import architectures
from models.families.registry import describe
from quantizer.flow import quantize
from quantizer.presets import PRESETS
from quantizer.storage.packing import PackedMatrix

FOUR = {"expert_count": 4, "expert_used_count": 2}
SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
LONGROPE = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [1.0 + i for i in range(8)]}
LATENT = {
    "num_key_value_heads": 4, "first_k_dense_replace": 1, "kv_lora_rank": 16, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "routed_scaling_factor": 2.0,
}  # fmt: skip
LATENT_KEYS = {
    **FOUR, "attention.kv_lora_rank": 16, "attention.key_length": 48, "attention.value_length": 16,
    "rope.dimension_count": 16, "expert_shared_count": 2, "expert_feed_forward_length": 32,
    "leading_dense_block_count": 1, "expert_weights_scale": 2.0,
}  # fmt: skip

CASES = {
    "mixtral": ("llama", "mixtral", {**LOCAL, "head_dim": 16}, FOUR),
    "qwen2moe": (
        "qwen2moe",
        "qwen2_moe",
        {**SPARSE, "shared_expert_intermediate_size": 48},
        {**FOUR, "expert_feed_forward_length": 32},
    ),
    "qwen3moe": (
        "qwen3moe",
        "qwen3_moe",
        {**SPARSE, "head_dim": 32, "norm_topk_prob": True},
        {**FOUR, "expert_feed_forward_length": 32},
    ),
    "olmoe": (
        "olmoe",
        "olmoe",
        {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.5},
        {**FOUR, "attention.clamp_kqv": 0.5},
    ),
    "granitemoe": ("granitemoe", "granitemoe", LOCAL, FOUR),
    "granitemoeshared": (
        "granitemoe",
        "granitemoeshared",
        {**LOCAL, "shared_intermediate_size": 48},
        {**FOUR, "expert_shared_feed_forward_length": 48},
    ),
    "phimoe": (
        "phimoe",
        "phimoe",
        {**LOCAL, "lm_head_bias": True, "attention_bias": True, "rope_scaling": {
            "type": "longrope", **LONGROPE, "short_mscale": 1.25, "long_mscale": 1.25,
            "original_max_position_embeddings": 32}},
        {**FOUR, "rope.scaling.attn_factor": 1.25, "rope.scaling.original_context_length": 32},
    ),
    "gpt-oss": (
        "gpt-oss",
        "gpt_oss",
        {**LOCAL, "head_dim": 16, "sliding_window": 8, "intermediate_size": 64},
        {**FOUR, "attention.sliding_window": 8, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
         "rope.scaling.original_context_length": 4096},
    ),
    "deepseek2": ("deepseek2", "deepseek_v2", {**LATENT, "q_lora_rank": None}, LATENT_KEYS),
    "deepseek3": (
        "deepseek2",
        "deepseek_v3",
        {**LATENT, "q_lora_rank": 24, "n_group": 2, "topk_group": 1},
        {**LATENT_KEYS, "attention.head_count_kv": 1, "attention.key_length": 32, "attention.value_length": 16,
         "attention.key_length_mla": 48, "attention.value_length_mla": 16, "attention.q_lora_rank": 24,
         "expert_gating_func": 2, "expert_weights_norm": True,
         "expert_group_count": 2, "expert_group_used_count": 1},
    ),
    "glm4moe": (
        "glm4moe",
        "glm4_moe",
        {"head_dim": 32, "use_qk_norm": True, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
         "moe_intermediate_size": 32, "first_k_dense_replace": 1, "attention_bias": True},
        {**FOUR, "expert_feed_forward_length": 32, "leading_dense_block_count": 1, "expert_weights_norm": True},
    ),
    "minimax-m2": ("minimax-m2", "minimax_m2", {**LOCAL, "head_dim": 32, "rotary_dim": 16}, FOUR),
    "ernie4_5-moe": (
        "ernie4_5-moe",
        "ernie4_5_moe",
        {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 2, "moe_intermediate_size": 32, "head_dim": 16},
        {**FOUR, "expert_feed_forward_length": 32, "expert_shared_count": 2, "leading_dense_block_count": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_converted_model_comes_back_whole(convert: Callable[..., Any], name: str):
    both = convert(*CASES[name])
    both.compare_tensors()
    assert describe(both.gguf.config) == describe(both.folder.config)


def test_joined_experts_keep_their_codes(convert: Callable[..., Any]):
    """gpt-oss: rows of gate and up alternate, in values and in codes alike."""
    kinds = {f"blk.0.ffn_{part}_exps.weight": "Q8_0" for part in ("gate", "up")}
    source = convert(*CASES["gpt-oss"], kinds=kinds).gguf.tensors["model.layers.0.mlp.experts.gate_up_proj"]
    packed = source.packed()
    assert packed.codes.shape == (4 * 128, 64)
    np.testing.assert_array_equal(packed.dequantize().reshape(4, 128, 64), source.read().swapaxes(1, 2))


def test_rows_of_joined_experts_are_read_alone(convert: Callable[..., Any]):
    """Of gates and ups that follow each other, also across the border."""
    source = convert(*CASES["granitemoe"]).gguf.tensors["model.layers.0.block_sparse_moe.input_linear.weight"]
    expert, whole = source.matrix(1), source.read()[1]
    for start, stop in [
        (0, 8),
        (0, len(whole)),
        (len(whole) // 2 - 3, len(whole) // 2 + 3),
        (len(whole) - 2, len(whole)),
    ]:
        np.testing.assert_array_equal(expert.rows(start, stop).read(), whole[start:stop])


def stacks_of(bundle: Path) -> dict[str, np.ndarray]:
    """The experts' matrices of a decode graph, packed or not, in the order of its rows."""
    arrays = {i.name: numpy_helper.to_array(i) for i in onnx.load(bundle / "decode.onnx").graph.initializer}
    found = {
        name: values
        for name, values in arrays.items()
        if name.endswith(("experts.gate_up_proj.weight", "experts.down_proj.weight"))
    }
    for name in [name.removesuffix(".codes") for name in arrays if "experts" in name and name.endswith(".codes")]:
        codes, scales = arrays[f"{name}.codes"], arrays[f"{name}.scales"]
        bits = 8 * codes.shape[-1] // (32 * scales.shape[-1])
        packed = (PackedMatrix(*pair, None) for pair in zip(codes, scales, strict=True))
        found[f"{name}.weight"] = np.stack([dequantize_packed(one, bits, 32, 32 * scales.shape[-1]) for one in packed])
    return found


@pytest.mark.parametrize(("name", "kind"), [("mixtral", "Q4_0"), ("gpt-oss", "Q8_0"), ("deepseek3", "Q4_0")])
def test_experts_keep_the_codes_of_a_file(convert: Callable[..., Any], tmp_path, name, kind):
    """Also where their output is multiplied by a constant, as DeepSeek's is: that goes into the scales."""
    ends = ("", "_exps", "_shexp")
    parts = [f"blk.{i}.ffn_{part}{end}.weight" for i in (0, 1) for part in ("gate", "up", "down") for end in ends]
    source = convert(*CASES[name], kinds=dict.fromkeys(parts, kind)).gguf.files[0]
    report = export(source, tmp_path / "kept", ExportOptions(verify="self-consistency"))
    export(source, tmp_path / "floats", ExportOptions(requantize=True, verify="none"))
    kept, floats = stacks_of(tmp_path / "kept"), stacks_of(tmp_path / "floats")
    assert {outcome.how for outcome in report.outcomes if "experts" in outcome.name} == {"kept"}
    assert kept.keys() == floats.keys() != set()
    assert all(np.array_equal(kept[weight], floats[weight]) for weight in kept)


def test_experts_of_a_float_file_are_packed_as_quantize_does(convert: Callable[..., Any], tmp_path):
    source = convert(*CASES["mixtral"]).gguf.files[0]
    export(source, tmp_path / "float", ExportOptions(verify="none"))
    theirs = quantize(tmp_path / "float", tmp_path / "theirs", PRESETS["fast"]).manifest
    ours = export(source, tmp_path / "ours", ExportOptions(quantize="int4", verify="none")).manifest
    assert ours.files["weights.bin"] == theirs.files["weights.bin"]


def test_architectures_of_a_family():
    assert architectures("mixtral") == architectures("llama")[:1] == ("llama",)
    assert architectures("deepseek_v2") == architectures("deepseek_v3") == ("deepseek2",)
