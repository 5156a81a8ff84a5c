"""Ways to run quantized experts on the CPU: time of each, and what it loses against the float operator.

    python tests/bench/experts.py [--experts 64 --taken 8 --hidden 1024 --inner 512]

Forms: the float operator; QMoE in 4 and 8 bits, its inputs in float32 (level 0) or rounded to int8 (level 4); and every
expert computed by MatMulNBits, which is what models get whose gating QMoE does not know. Random weights, 2 threads.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from quantizer.algorithms.rtn import round_to_nearest
from quantizer.storage.packing import pack
from quantizer.storage.scheme import Scheme

DOMAIN = "com.microsoft"
OPERATOR = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in {"experts": 8, "taken": 2, "hidden": 512, "inner": 1024}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    sizes = parser.parse_args()
    rng = np.random.default_rng(0)
    stacks = [
        rng.standard_normal((sizes.experts, rows, inputs)).astype(np.float32) / np.float32(inputs**0.5)
        for rows, inputs in ((2 * sizes.inner, sizes.hidden), (sizes.hidden, sizes.inner))
    ]
    sessions = {"float": operator(sizes, stacks)} | dict(quantized(sizes, stacks))
    for tokens in (1, 8, 128):
        feeds = {
            "x": rng.standard_normal((tokens, sizes.hidden)).astype(np.float32),
            "routing": rng.standard_normal((tokens, sizes.experts)).astype(np.float32) * 2,
        }
        wanted = sessions["float"].run(None, feeds)[0]
        for name, session in sessions.items():
            lost = np.linalg.norm(session.run(None, feeds)[0] - wanted) / np.linalg.norm(wanted)
            print(f"{tokens:4} tokens  {name:28} {microseconds(session, feeds):9.0f} µs  error {lost:.2%}", flush=True)


def quantized(sizes: argparse.Namespace, stacks: list[Any]) -> Iterator[tuple[str, Any]]:
    for bits, group, level in ((4, 32, 0), (4, 32, 4), (4, 64, 4), (8, 64, 4)):
        packed = [[pack(round_to_nearest(matrix, Scheme(bits, group))) for matrix in stack] for stack in stacks]
        yield f"QMoE int{bits} g{group} level {level}", qmoe(sizes, packed, bits, group, level)
    packed = [[pack(round_to_nearest(matrix, Scheme(4, 32))) for matrix in stack] for stack in stacks]
    yield "all by MatMulNBits int4 g32", every_expert(sizes, packed)


def operator(sizes: argparse.Namespace, stacks: list[Any]) -> Any:
    attributes = {"k": sizes.taken, "normalize_routing_weights": 1, **OPERATOR}
    node = helper.make_node("MoE", ["x", "routing", "w1", "", "w2"], ["y"], domain=DOMAIN, **attributes)
    return session_of(sizes, [node], {"w1": stacks[0], "w2": stacks[1]})


def qmoe(sizes: argparse.Namespace, packed: list[Any], bits: int, group: int, level: int) -> Any:
    arrays = {}
    for number, stack in enumerate(packed, 1):
        arrays[f"c{number}"] = np.stack([matrix.codes.reshape(len(matrix.codes), -1) for matrix in stack])
        arrays[f"s{number}"] = np.stack([matrix.scales for matrix in stack])
        arrays[f"z{number}"] = np.stack([matrix.zero_points for matrix in stack])
    inputs = ["x", "routing", "c1", "s1", "", "c2", "s2", "", "", "", "", "z1", "z2"]
    attributes = {"k": sizes.taken, "expert_weight_bits": bits, "block_size": group, "accuracy_level": level}
    node = helper.make_node("QMoE", inputs, ["y"], domain=DOMAIN, weights_prepacked=0, **attributes, **OPERATOR)
    return session_of(sizes, [node], arrays)


def every_expert(sizes: argparse.Namespace, packed: list[Any]) -> Any:
    """Logits → weights, 0 for experts not taken; then the sum over all experts, in two products each."""
    arrays: dict[str, Any] = {"k": np.array([sizes.taken]), "zero": np.zeros(1, np.float32)}
    nodes = [
        helper.make_node("TopK", ["routing", "k"], ["best", "taken"]),
        helper.make_node("Softmax", ["best"], ["shares"], axis=-1),
        helper.make_node("Shape", ["routing"], ["shape"]),
        helper.make_node("Expand", ["zero", "shape"], ["none"]),
        helper.make_node("ScatterElements", ["none", "taken", "shares"], ["weights"], axis=1),
        helper.make_node("Split", ["weights"], [f"weight{e}" for e in range(sizes.experts)],
                         axis=1, num_outputs=sizes.experts),
    ]  # fmt: skip
    for expert in range(sizes.experts):
        for number, (inputs, outputs) in ((1, (sizes.hidden, 2 * sizes.inner)), (2, (sizes.inner, sizes.hidden))):
            matrix = packed[number - 1][expert]
            names = [f"{part}{number}.{expert}" for part in ("codes", "scales", "zeros")]
            order = np.arange(outputs) if number == 2 else np.arange(outputs).reshape(-1, 2).T.reshape(-1)
            parts = [matrix.codes[order], matrix.scales[order], matrix.zero_points[order]]
            arrays |= dict(zip(names, parts, strict=True))
            attributes = {"K": inputs, "N": outputs, "bits": 4, "block_size": 32, "accuracy_level": 4}
            source = "x" if number == 1 else f"inner{expert}"
            nodes.append(
                helper.make_node("MatMulNBits", [source, *names], [f"p{number}.{expert}"], domain=DOMAIN, **attributes)
            )
            if number == 1:
                nodes += gating(expert)
        nodes.append(helper.make_node("Mul", [f"p2.{expert}", f"weight{expert}"], [f"share{expert}"]))
    nodes.append(helper.make_node("Sum", [f"share{e}" for e in range(sizes.experts)], ["y"]))
    return session_of(sizes, nodes, arrays)


def gating(expert: int) -> list[Any]:
    return [
        helper.make_node("Split", [f"p1.{expert}"], [f"gate{expert}", f"up{expert}"], axis=-1, num_outputs=2),
        helper.make_node("QuickGelu", [f"gate{expert}"], [f"active{expert}"], domain=DOMAIN, alpha=1.0),
        helper.make_node("Mul", [f"active{expert}", f"up{expert}"], [f"inner{expert}"]),
    ]


def session_of(sizes: argparse.Namespace, nodes: list[Any], arrays: dict[str, Any]) -> Any:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", width])
        for name, width in (("x", sizes.hidden), ("routing", sizes.experts))
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "experts", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def microseconds(session: Any, feeds: dict[str, Any], rounds: int = 20) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return float(np.median(times[2:])) * 1e6


if __name__ == "__main__":
    main()
