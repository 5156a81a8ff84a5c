"""The graph edit, run by ONNX Runtime and compared with float operators over the dequantized weights."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from quantizer.algorithms.rtn import round_to_nearest
from quantizer.graph.quantizable import find_quantizable_weights
from quantizer.graph.rewrite import rewrite_graph
from quantizer.graph.saving import save_graph
from quantizer.storage.matrix import NO_RESIDUALS
from quantizer.storage.scales import plan_scales
from quantizer.storage.scheme import Scheme
from quantizer.storage.storing import store_codes
from quantizer.storage.weights_file import WeightsWriter

RNG = np.random.default_rng(0)
SCHEMES = [
    Scheme(4, 32),
    Scheme(4, 64, True),
    Scheme(8, 16),
    Scheme(8, 128),
    Scheme(4, 16, False, 8),
    Scheme(8, 32, True, 8),
]


def value(name, array=None, dtype=ir.DataType.FLOAT, shape=None):
    if array is None:
        return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)


def model(inputs, nodes, initializers):
    out = nodes[-1].outputs[0]
    out.name, out.type = "out", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(inputs, [out], nodes=nodes, initializers=initializers, opset_imports={"": 21}, name="g")
    return ir.Model(graph, ir_version=10)


def run(path, **feeds):
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def quantize(onnx, folder, scheme, accuracy_level=0):
    """Quantize every site; return the file and the dequantized weights [N, K] by name."""
    stored, dequantized = {}, {}
    with WeightsWriter(folder / "weights.bin") as writer:
        for site in list(find_quantizable_weights(onnx.graph, vocab_size=50)):
            array = onnx.graph.initializers[site.weight].const_value.numpy()
            weight = np.ascontiguousarray(array.T if site.transposed else array)
            matrix = round_to_nearest(weight, scheme, plan_scales(weight, scheme, np.float16))
            stored[site.weight], _ = store_codes(writer, site.weight, matrix, NO_RESIDUALS, np.float16, 0.0)
            dequantized[site.weight] = matrix.dequantize()
    rewrite_graph(onnx.graph, stored, accuracy_level)
    save_graph(onnx, folder / "g.onnx", writer.placed)
    return folder / "g.onnx", dequantized


def linear_model(inputs, rows, bias):
    """x [batch, sequence, K] · W [K, N] (+ bias)."""
    x = value("x", shape=["batch", "sequence", inputs])
    w = value("layer.proj.weight", RNG.standard_normal((inputs, rows)).astype(np.float32))
    nodes = [ir.node("MatMul", [x, w], name="layer.proj")]
    initializers = [w]
    if bias:
        initializers.append(value("layer.proj.bias", RNG.standard_normal(rows).astype(np.float32)))
        nodes.append(ir.node("Add", [nodes[0].outputs[0], initializers[1]], name="layer.proj.bias_add"))
    return model([x], nodes, initializers)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("inputs", [64, 72])
def test_matmul_becomes_matmulnbits(tmp_path, scheme, inputs, bias):
    onnx = linear_model(inputs, 24, bias)
    offset = onnx.graph.initializers["layer.proj.bias"].const_value.numpy() if bias else 0
    path, dequantized = quantize(onnx, tmp_path, scheme)
    x = RNG.standard_normal((2, 3, inputs)).astype(np.float32)
    np.testing.assert_allclose(run(path, x=x), x @ dequantized["layer.proj.weight"].T + offset, atol=2e-5)
    scales = ["Cast"] if scheme.scale_bits == 16 else ["Cast", "Cast", "Mul"]
    assert [node.op_type for node in ir.load(path).graph] == [*scales, "MatMulNBits"]  # the Add is gone


def test_what_makes_scales_is_folded_when_a_session_loads(tmp_path):
    path, _ = quantize(linear_model(64, 24, bias=False), tmp_path, Scheme(4, 32, scale_bits=8))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert [node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph] == ["MatMulNBits"]


def test_level_four_is_close(tmp_path):
    path, dequantized = quantize(linear_model(64, 24, bias=False), tmp_path, Scheme(4), accuracy_level=4)
    x = RNG.standard_normal((1, 1, 64)).astype(np.float32)
    error = np.abs(run(path, x=x) - x @ dequantized["layer.proj.weight"].T).max()
    assert 0 < error < 0.2  # activations rounded to int8


def tied_model(vocab, hidden):
    """ids [batch, sequence] → rows of a table → mean over the sequence → the same table as head."""
    ids = value("ids", dtype=ir.DataType.INT64, shape=["batch", "sequence"])
    table = value("embed.weight", RNG.standard_normal((vocab, hidden)).astype(np.float32))
    axis = value("axis", np.array([1], np.int64))
    rows = ir.node("Gather", [table, ids], {"axis": 0}, name="embed")
    mean = ir.node("ReduceMean", [rows.outputs[0], axis], {"keepdims": 0}, name="mean")
    head = ir.node("Gemm", [mean.outputs[0], table], {"transB": 1}, name="head")
    return model([ids], [rows, mean, head], [table, axis])


@pytest.mark.parametrize("scheme", [Scheme(4, 32, True), Scheme(8, 32, True), Scheme(4, 32, True, 8)])
@pytest.mark.parametrize("hidden", [64, 72])
def test_tied_table_is_shared(tmp_path, scheme, hidden):
    path, dequantized = quantize(tied_model(50, hidden), tmp_path, scheme)
    table = dequantized["embed.weight"]
    ids = RNG.integers(0, 50, (2, 5))
    np.testing.assert_allclose(run(path, ids=ids), table[ids].mean(axis=1) @ table.T, atol=2e-5)
    graph = ir.load(path).graph
    assert graph.initializers["embed.codes"].consumers()[0].op_type == "GatherBlockQuantized"
    assert len(graph.initializers["embed.codes"].consumers()) == 2
    assert "embed.weight" not in graph.initializers


def test_a_matrix_used_in_another_way_is_left_alone():
    x = value("x", shape=["batch", 8])
    w = value("w", np.ones((8, 8), np.float32))
    transposed = ir.node("Transpose", [w], name="t")
    onnx = model([x], [transposed, ir.node("MatMul", [x, transposed.outputs[0]], name="m")], [w])
    assert list(find_quantizable_weights(onnx.graph, vocab_size=50)) == []
