"""Quantized checkpoints, packed here bit by bit: the values by their formula, the codes by the values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from exporter.checkpoint import TensorSource, open_checkpoint
from exporter.checkpoint.quantized.matrices import combine_quantized
from exporter.checkpoint.safetensors.file import read_safetensors
from runtime.errors import CheckpointError, UnsupportedError

Arrays = dict[str, np.ndarray]
N, K = 32, 128


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as little-endian int32 words, low bits first."""
    rows = [sum(int(code) << (bits * i) for i, code in enumerate(row)) for row in codes]
    width = -(-codes.shape[1] * bits // 32)
    return np.array([np.frombuffer(row.to_bytes(4 * width, "little"), "<i4") for row in rows])


@pytest.fixture
def combine(tmp_path: Path) -> Callable[..., dict[str, TensorSource]]:
    def run(arrays: Arrays, settings: dict[str, Any]) -> dict[str, TensorSource]:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
        for name in tensors:
            if tensors[name].dtype == torch.uint8 and name.endswith(".weight"):
                tensors[name] = tensors[name].view(torch.float8_e4m3fn)
        save_file(tensors, tmp_path / "model.safetensors")
        return combine_quantized(read_safetensors(tmp_path / "model.safetensors"), settings, "here")

    return run


def check(source: TensorSource, expected: np.ndarray, bits: int | None, group: int = 0) -> None:
    """The values are the formula's, and the codes, where there are some, are the same values."""
    assert source.shape == expected.shape
    assert source.read().tobytes() == expected.astype(np.float32).tobytes()
    packed = source.packed()
    assert (packed is None) == (bits is None)
    if packed is not None:
        assert (packed.bits, packed.group_size, packed.storable) == (bits, group, True)
        assert packed.codes.max() < 1 << bits
        assert packed.dequantize().tobytes() == source.read().tobytes()


def random_parts(bits: int, group: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [N, K], zero points [N, G], float16 scales [N, G]."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, (N, K), np.uint8)
    zeros = rng.integers(1, 1 << bits, (N, K // group), np.uint8)
    return codes, zeros, rng.uniform(0.01, 0.1, zeros.shape).astype(np.float16)


def formula(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return (codes.astype(np.float32) - zeros[:, groups]) * scales.astype(np.float32)[:, groups]


def gptq(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, bits: int, groups: np.ndarray, lack: int) -> Arrays:
    return {
        "a.qweight": words(codes, bits).T,
        "a.qzeros": words((zeros.T - lack).astype(np.uint8), bits),
        "a.scales": scales.T,
        "a.g_idx": groups.astype(np.int32),
        "a.bias": np.ones(N, np.float16),
    }


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(combine, bits, version):
    groups = np.arange(K) // 32
    codes, zeros, scales = random_parts(bits, 32)
    tensors = combine(
        gptq(codes, zeros, scales, bits, groups, lack=1 if version == "gptq" else 0),
        {"quant_method": "gptq", "bits": bits, "group_size": 32, "checkpoint_format": version},
    )
    assert sorted(tensors) == ["a.bias", "a.weight"]
    check(tensors["a.weight"], formula(codes, zeros, scales, groups), {3: 4}.get(bits, bits), 32)


def test_gptq_with_act_order_has_values_but_no_codes(combine):
    groups = np.random.default_rng(1).permutation(np.arange(K) // 32)
    codes, zeros, scales = random_parts(4, 32)
    tensors = combine(gptq(codes, zeros, scales, 4, groups, lack=1), {"quant_method": "gptq", "bits": 4})
    check(tensors["a.weight"], formula(codes, zeros, scales, groups), None)


def test_gptq_with_one_group_per_row(combine):
    groups = np.zeros(K, int)
    codes, zeros, scales = random_parts(4, K)
    tensors = combine(gptq(codes, zeros, scales, 4, groups, lack=1), {"quant_method": "gptq", "bits": 4})
    check(tensors["a.weight"], formula(codes, zeros, scales, groups), 4, 128)


@pytest.mark.parametrize("version", ["gemm", "gemv"])
def test_awq(combine, version):
    codes, zeros, scales = random_parts(4, 32)
    if version == "gemm":
        order = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word is column order[i]
        mix = lambda rows: words(rows.reshape(len(rows), -1, 8)[..., order].reshape(rows.shape), 4)  # noqa: E731
        arrays = {"a.qweight": mix(codes.T), "a.qzeros": mix(zeros.T), "a.scales": scales.T}
    else:
        padded = np.pad(zeros, ((0, 0), (0, 4))), np.pad(scales, ((0, 0), (0, 4)))
        arrays = {"a.qweight": words(codes, 4), "a.qzeros": words(padded[0], 4), "a.scales": padded[1]}
    tensors = combine(arrays, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": version})
    check(tensors["a.weight"], formula(codes, zeros, scales, np.arange(K) // 32), 4, 32)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 32), (4, K)])
def test_compressed_tensors(combine, bits, group, symmetric):
    codes, zeros, scales = random_parts(bits, group)
    arrays = {
        "a.weight_packed": words(codes, bits),
        "a.weight_scale": scales,
        "a.weight_shape": np.array([N, K], np.int64),
        "a.input_scale": np.ones(1, np.float16),
    }
    if symmetric:
        zeros = np.full_like(zeros, 1 << (bits - 1))
    else:
        arrays["a.weight_zero_point"] = words(zeros.T, bits).T
    settings = {"num_bits": bits, "group_size": group, "symmetric": symmetric}
    tensors = combine(arrays, compressed(settings, "pack-quantized"))
    assert list(tensors) == ["a.weight"]
    check(tensors["a.weight"], formula(codes, zeros, scales, np.arange(K) // group), bits, group)


def compressed(weights: dict[str, Any], form: str) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": weights}}}


def test_compressed_int8_rows(combine):
    values = np.random.default_rng(0).integers(-128, 128, (N, K)).astype(np.int8)
    scales = np.random.default_rng(1).uniform(0.01, 0.1, (N, 1)).astype(np.float32)
    tensors = combine({"a.weight": values, "a.weight_scale": scales}, compressed({"num_bits": 8}, "int-quantized"))
    check(tensors["a.weight"], values.astype(np.float32) * scales, 8, 128)


def float8(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


@pytest.mark.parametrize(
    ("settings", "ending", "shape", "steps"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "weight_scale_inv", (2, 3), (128, 128)),
        ({"quant_method": "fp8", "weight_block_size": None}, "weight_scale", (), (1000, 1000)),
        (compressed({"num_bits": 8}, "float-quantized"), "weight_scale", (200, 1), (1, 1000)),
        (compressed({"block_structure": [128, 128]}, "float-quantized"), "weight_scale", (2, 3), (128, 128)),
    ],
)
def test_float8(combine, settings, ending, shape, steps):
    stored = float8((200, 300))
    scales = np.random.default_rng(3).uniform(0.5, 2, shape).astype(np.float32)
    rows, columns = np.arange(200)[:, None] // steps[0], np.arange(300)[None] // steps[1]
    expected = stored.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * (scales[rows, columns] if shape else scales)
    tensors = combine({"a.weight": stored, f"a.{ending}": scales, "a.input_scale": np.ones(())}, settings)
    assert list(tensors) == ["a.weight"]
    check(tensors["a.weight"], expected, None)


def test_mxfp4_experts(combine):
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (2, 6, 3, 16), np.uint8)
    scales = rng.integers(100, 140, (2, 6, 3), np.uint8)
    steps = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([steps, -steps])
    values = np.stack([table[blocks & 15], table[blocks >> 4]], -1).reshape(2, 6, 3, 32)
    values = values * np.exp2(scales.astype(np.float32) - 127)[..., None]
    source = combine({"e.down_proj_blocks": blocks, "e.down_proj_scales": scales}, {"quant_method": "mxfp4"})[
        "e.down_proj"
    ]
    np.testing.assert_array_equal(source.read(), values.reshape(2, 6, 96).swapaxes(1, 2))
    np.testing.assert_array_equal(source.packed().dequantize().reshape(2, 6, 96), values.reshape(2, 6, 96))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "here: quant_method 'bitsandbytes'; supported are gptq, awq"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"quant_method": "awq", "version": "exllama"}, "AWQ version 'exllama'"),
        (compressed({"num_bits": 4}, "nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized'"),
    ],
)
def test_other_methods_are_refused_by_name(combine, settings, message):
    with pytest.raises(UnsupportedError, match=message):
        combine({"a.weight": np.ones(3, np.float32)}, settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a.qzeros": np.zeros((4, 3), np.int32)}, "do not fit together"),
        ({"a.g_idx": np.zeros(K - 1, np.int32)}, r"has 128 inputs, but its g_idx \[127\]"),
        ({"a.scales": None}, r"'a.scales' is missing"),
    ],
)
def test_contradictions_are_named(combine, change, message):
    arrays = gptq(*random_parts(4, 32), 4, np.arange(K) // 32, lack=1) | change
    with pytest.raises(CheckpointError, match=message):
        combine({k: v for k, v in arrays.items() if v is not None}, {"quant_method": "gptq", "bits": 4})


def test_a_folder_with_quantized_weights_opens(make_checkpoint):
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    folder = make_checkpoint(seed=1, quantization_config=settings)
    arrays = gptq(*random_parts(4, 32), 4, np.arange(K) // 32, lack=1)
    name = "model.layers.0.mlp.down_proj"
    save_file(
        {k.replace("a.", f"{name}."): torch.from_numpy(np.ascontiguousarray(v)) for k, v in arrays.items()},
        folder / "model.safetensors",
    )
    checkpoint = open_checkpoint(folder)
    assert "quantization_config" not in checkpoint.config
    assert checkpoint.tensors[f"{name}.weight"].shape == (N, K)
