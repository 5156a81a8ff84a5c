"""The smallest example of a cache: two positions through the real operator, at once and one by one.

x₀ = [1, 0], x₁ = [0, 1]; queries and keys are x itself, values 2x, one head of width 2.
Position 0 sees only itself: [2, 0]. Position 1 weighs scores 0 and 1/√2 by softmax: 0.330 · [2, 0] + 0.670 · [0, 2].
The operator wants heads of at least 8: six zeros are padded, and the scale stays 1/√2.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

WIDTH, CAPACITY = 8, 4
X = np.zeros((2, WIDTH), np.float32)
X[0, 0] = X[1, 1] = 1
EXPECTED = np.array([[2, 0], [0.660, 1.340]])


@pytest.fixture(scope="module")
def attention() -> onnxruntime.InferenceSession:
    """query, key, value [1, sequence, 8] → GroupQueryAttention → output; past and present of 4 positions."""
    slots, cache = [1, "sequence", WIDTH], [1, 1, CAPACITY, WIDTH]
    floats = {"query": slots, "key": slots, "value": slots, "past_key": cache, "past_value": cache}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in floats.items()]
    inputs.append(helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, [1]))
    inputs.append(helper.make_tensor_value_info("total", TensorProto.INT32, []))
    shapes = {"output": slots, "present_key": cache, "present_value": cache}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    node = helper.make_node(
        "GroupQueryAttention", [value.name for value in inputs], list(shapes), domain="com.microsoft",
        num_heads=1, kv_num_heads=1, scale=float(1 / np.sqrt(2)),
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "attention", inputs, outputs), opset_imports=opsets)
    model.ir_version = 10
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def attend(session, x, past, length):
    """Put the rows of `x` behind `length` cached positions; returns their outputs [n, 2] and the new cache."""
    total = length + len(x)
    feeds = {"query": x[None], "key": x[None], "value": 2 * x[None], "past_key": past[0], "past_value": past[1]}
    lengths = {"seqlens_k": np.array([total - 1], np.int32), "total": np.array(total, np.int32)}
    output, *present = session.run(None, feeds | lengths)
    return output[0, :, :2], present


def empty():
    return [np.zeros((1, 1, CAPACITY, WIDTH), np.float32) for _ in range(2)]


def test_both_positions_at_once(attention):
    output, _ = attend(attention, X, empty(), 0)
    np.testing.assert_allclose(output, EXPECTED, atol=5e-4)


def test_one_by_one_from_the_cache(attention):
    first, cache = attend(attention, X[:1], empty(), 0)
    second, _ = attend(attention, X[1:], cache, 1)
    np.testing.assert_allclose(np.concatenate([first, second]), EXPECTED, atol=5e-4)


def test_what_lies_behind_the_length_is_never_read(attention):
    first, cache = attend(attention, X[:1], empty(), 0)
    for tensor in cache:
        tensor[:, :, 1:] = np.nan
    second, _ = attend(attention, X[1:], cache, 1)
    np.testing.assert_allclose(np.concatenate([first, second]), EXPECTED, atol=5e-4)


def test_the_second_weight_is_a_softmax():
    weight = 1 / (1 + np.exp(-1 / np.sqrt(2)))
    assert EXPECTED[1] == pytest.approx([2 * (1 - weight), 2 * weight], abs=5e-4)
