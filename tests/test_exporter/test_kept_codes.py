"""Quantized checkpoints in bundles: codes as they were, and the logits of the checkpoint."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from packed_weights import dequantize_packed
from safetensors.numpy import load_file, save_file

from exporter import ExportOptions, export
from exporter.checkpoint import open_checkpoint
from exporter.weights.lossless_repack import repacked_matrix
from exporter.weights.plan import Weight
from models.blocks.parameter import Plan
from quantizer.graph.quantizable import QuantizableWeight
from quantizer.storage.packing import PackedMatrix
from runtime.bundle.manifest import QuantizedTensor

LAYER = "model.layers.1."
LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
LINEARS += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
UNVERIFIED = ExportOptions(verify="none")


def decoded(bundle, entry: QuantizedTensor, inputs: int) -> np.ndarray:
    """The float matrix that MatMulNBits sees in the decode graph."""
    model = onnx.load(bundle / "decode.onnx")
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    module = entry.name.removesuffix(".weight")
    packed = PackedMatrix(*(arrays.get(f"{module}.{part}") for part in ("codes", "scales", "zero_points")))
    return dequantize_packed(packed, entry.bits, entry.group_size, inputs)


def same_as_stored(report, source, weight: str, *parts: str) -> bool:
    """The bundle's matrix is the stack of the checkpoint's tensors, bit for bit."""
    tensors = open_checkpoint(source).tensors
    expected = np.concatenate([tensors[part].read() for part in parts])
    entry = next(t for t in report.manifest.quantization.tensors if t.name == weight)
    return np.array_equal(decoded(report.folder, entry, expected.shape[1]), expected)


def quantized_folder(folder, pack, settings):
    """Replace the layers' matrices by what `pack(values)` makes of them."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "_proj.weight" in name]:
        stem = name.removesuffix(".weight")
        tensors |= {f"{stem}.{part}": np.ascontiguousarray(v) for part, v in pack(tensors.pop(name)).items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def codes_of(values: np.ndarray, group: int):
    """4-bit codes [N, K], zero points and float16 scales [N, G] of a plain asymmetric grid."""
    grouped = values.reshape(len(values), -1, group)
    low, high = np.minimum(grouped.min(2), 0), np.maximum(grouped.max(2), 0)
    scales = ((high - low) / 15).astype(np.float16)
    zeros = np.clip(np.rint(-low / scales), 1, 15).astype(np.uint8)
    codes = np.clip(np.rint(grouped / scales[:, :, None]) + zeros[:, :, None], 0, 15).astype(np.uint8)
    return codes.reshape(values.shape), zeros, scales


def words(codes: np.ndarray, order=range(8)) -> np.ndarray:
    """Eight 4-bit codes of a row in one int32, the code `order[i]` at place i."""
    eights = codes.reshape(len(codes), -1, 8)[:, :, list(order)].astype(np.uint32)
    return (eights << (4 * np.arange(8, dtype=np.uint32))).sum(2, dtype=np.uint32).view(np.int32)


def gptq(values):
    codes, zeros, scales = codes_of(values, 32)
    return {"qweight": words(codes.T.T).T, "qzeros": words((zeros - 1).T), "scales": scales.T} | {
        "g_idx": np.arange(values.shape[1], dtype=np.int32) // 32
    }


def awq(values):
    codes, zeros, scales = codes_of(values, 32)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {"qweight": words(codes.T, order), "qzeros": words(zeros.T, order), "scales": scales.T}


def compressed(values):
    codes, zeros, scales = codes_of(values, 32)
    return {
        "weight_packed": words(codes),
        "weight_scale": scales,
        "weight_zero_point": words(zeros.T).T,
        "weight_shape": np.array(values.shape, np.int64),
    }


FOLDERS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "compressed": (
        compressed,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "symmetric": False}}},
        },
    ),
}


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_gguf_codes_land_bit_exactly(make_gguf, tmp_path, kind):
    _, source = make_gguf(kind)
    report = export(source, tmp_path / "bundle", ExportOptions(verify="transformers"))
    qkv = [f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv"]
    assert same_as_stored(report, source, f"{LAYER}self_attn.qkv_proj.weight", *qkv)
    assert same_as_stored(report, source, "model.embed_tokens.weight", "model.embed_tokens.weight")
    assert {outcome.how for outcome in report.outcomes} == {"kept"}
    assert report.manifest.verification.max_difference < 1e-4
    operators = set(report.manifest.target.operators)
    assert {"com.microsoft::MatMulNBits", "com.microsoft::GatherBlockQuantized"} <= operators
    assert report.manifest.quantization.recipe == {"source": "checkpoint", "kept": list({kind: 0} | {kind: 0})}


@pytest.mark.parametrize("form", sorted(FOLDERS))
def test_codes_of_a_folder_land_bit_exactly(make_checkpoint, tmp_path, form):
    source = quantized_folder(make_checkpoint(), *FOLDERS[form])
    report = export(source, tmp_path / "bundle", ExportOptions(verify="transformers"))
    gate_up = [f"{LAYER}mlp.{part}_proj.weight" for part in ("gate", "up")]
    assert same_as_stored(report, source, f"{LAYER}mlp.gate_up_proj.weight", *gate_up)
    assert report.manifest.verification.max_difference < 1e-4
    assert {(t.bits, t.group_size, t.symmetric) for t in report.manifest.quantization.tensors} == {(4, 32, False)}
    fates = {outcome.name: (outcome.how, outcome.reason) for outcome in report.outcomes}
    assert "model.embed_tokens.weight" not in fates  # it has no codes that could be lost


def test_requantize_makes_floats(make_gguf, tmp_path):
    _, source = make_gguf("Q4_0")
    report = export(source, tmp_path / "bundle", ExportOptions(verify="none", requantize=True))
    assert report.manifest.quantization is None
    assert "com.microsoft::MatMulNBits" not in report.manifest.target.operators
    assert {(o.how, o.stored_as, o.reason) for o in report.outcomes} == {("float", "Q4_0", "as --requantize wants it")}


def test_act_order_is_dequantized_and_said_so(make_checkpoint, tmp_path):
    """Groups of inputs that do not lie beside each other: the values are right, and no operator takes the codes."""

    def scattered(values):
        order = np.random.default_rng(0).permutation(values.shape[1])
        parts = gptq(values[:, order])
        codes = np.empty_like(order)
        codes[order] = np.arange(len(order))
        unsorted = words(codes_of(values[:, order], 32)[0][:, codes].T.T).T
        return parts | {"qweight": unsorted, "g_idx": (codes // 32).astype(np.int32)}

    source = quantized_folder(make_checkpoint(), scattered, FOLDERS["gptq"][1])
    report = export(source, tmp_path / "bundle", ExportOptions(verify="transformers"))
    assert report.manifest.verification.max_difference < 1e-4
    reason = "GPTQ 4-bit with act-order has no exact form in MatMulNBits"
    assert {(o.how, o.reason) for o in report.outcomes} == {("float", reason)}


def test_what_is_mostly_inexact_is_all_floats(make_gguf, tmp_path):
    _, source = make_gguf("Q4_1")
    report = export(source, tmp_path / "bundle", UNVERIFIED)
    assert report.manifest.quantization is None
    assert {(o.how, o.reason) for o in report.outcomes} == {("float", "Q4_1 has no exact form in MatMulNBits")}


class Stored:
    """A tensor with codes of a given width."""

    def __init__(self, bits, group, seed, zeros=False):
        from exporter.checkpoint import PackedTensor

        rng = np.random.default_rng(seed)
        self.name, self.shape, self.dtype = "w", (4, 128), f"{bits}-bit"
        points = rng.integers(0, 1 << bits, (4, 128 // group)).astype(np.uint8) if zeros else None
        codes = rng.integers(0, 1 << bits, (4, 128)).astype(np.uint8)
        self._packed = PackedTensor(codes, rng.random((4, 128 // group), np.float32), points, bits, group)

    def packed(self):
        return self._packed


@pytest.mark.parametrize(
    ("parts", "scheme"),
    [
        ([(4, 64, False), (4, 32, False)], (4, 32, True)),
        ([(4, 128, False), (8, 32, False)], (8, 32, True)),
        ([(2, 32, False), (4, 32, True)], (4, 32, False)),
        ([(2, 16, True), (8, 64, False)], (8, 16, False)),
    ],
)
def test_stacked_codes_of_different_kinds_keep_their_values(parts, scheme):
    sources = tuple(Stored(bits, group, i, zeros) for i, (bits, group, zeros) in enumerate(parts))
    order = np.array([3, 1, 0, 2, 9, 8, 5, 4])
    weight = Weight("w", (10, 128), None, Plan(rows=order), sources)
    matrix = repacked_matrix(weight, QuantizableWeight("w", "w", "linear", 10, 128, False))
    assert (matrix.scheme.bits, matrix.scheme.group_size, matrix.scheme.symmetric) == scheme
    expected = np.zeros((10, 128), np.float32)
    expected[order] = np.concatenate([source.packed().dequantize() for source in sources])
    np.testing.assert_array_equal(matrix.dequantize(), expected)


def test_columns_that_move_are_a_reason_not_to():
    weight = Weight("w", (4, 128), None, Plan(columns=np.arange(128)), (Stored(4, 32, 0),))
    assert repacked_matrix(weight, QuantizableWeight("w", "w", "linear", 4, 128, False)) == (
        "its values are rearranged or shifted on the way"
    )
