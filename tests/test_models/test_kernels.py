"""Every node of every graph has a kernel where it is to run, by the tables of what ONNX Runtime registers."""

import json
import runpy
from pathlib import Path
from typing import get_args

import onnx_ir as ir
import onnxruntime
import pytest
import transformers
from tiny_families import CASES, save_random
from transformers import AutoConfig

from exporter.graph import OPSET, build_graph, build_sequence_graph
from exporter.kernels import find_missing, node_types, require_kernels
from models.decoder.sequence_output import Dense, Pooling, SequenceOutput
from models.families.registry import describe
from models.targets.kernels import builds, operators, opset
from models.targets.target import Target
from runtime.errors import UnsupportedError

ROOT = Path(__file__).parents[2]
# Of the CPU's graphs, test_families.py and test_float16.py make each, and build_graph refuses what this test looks for.
TARGETS = [Target("cuda", "float16"), Target("cuda", "bfloat16")]


def decoder_of(case):
    transformers.logging.set_verbosity_error()
    return describe(AutoConfig.for_model(case.model_type, **case.config()).to_dict())[0]


POOLED = [case for case in CASES if case.model_type in ("qwen3", "mistral", "gemma2", "phi3", "gpt2")]


@pytest.mark.parametrize("case", POOLED, ids=map(str, POOLED))
@pytest.mark.parametrize("kind", get_args(Pooling))
def test_every_node_of_a_pooled_graph_has_a_kernel(case, kind):
    dense = Dense("dense.0", decoder_of(case).hidden_size, 16, True, "tanh")
    for target in TARGETS:
        output = SequenceOutput("embeddings", (kind,), (dense,), normalize=True)
        assert find_missing(build_sequence_graph(decoder_of(case), output, target).graph, target) == []


@pytest.mark.parametrize("case", CASES, ids=map(str, CASES))
def test_every_node_has_a_kernel(case):
    decoder = decoder_of(case)
    for target in TARGETS:
        for role in ("prefill", "decode"):
            graph = build_graph(decoder, target, role).graph
            assert find_missing(graph, target) == []
            check_types(graph)


def check_types(graph):
    """What the signatures say of types is what the graph itself declares, where it does."""
    known = {value: value.dtype.name.lower() for value in graph.outputs}
    for node, name, types in node_types(graph):
        formal = operators()[name].type_names(operators()[name].outputs, len(node.outputs))
        found = {value: types.get(kind, kind) for value, kind in zip(node.outputs, formal, strict=True)}
        assert all(known[value] == element for value, element in found.items() if value in known)


PACKED = ["mistral", "gemma2", "gpt2", "opt", "mpt", "phimoe", "gpt_oss", "deepseek_v2", "gemma4_text", "qwen3_next"]


@pytest.mark.parametrize("model_type", PACKED)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.dtype)
def test_every_node_of_a_packed_graph_has_a_kernel(model_type, target, make_bundle, tmp_path):
    save_random(next(case for case in CASES if case.model_type == model_type), tmp_path)
    bundle = make_bundle(tmp_path, target=target.provider, dtype=target.dtype, quantize="int4")
    for role in ("prefill", "decode"):
        graph = ir.load(bundle / f"{role}.onnx").graph
        assert any(node.op_type == "MatMulNBits" for node in graph)
        assert find_missing(graph, target) == []


def graph_of(node, *inputs):
    return ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": OPSET})


def value(dtype):
    return ir.Value(name=dtype.name, type=ir.TensorType(dtype), shape=ir.Shape([2]))


def test_a_node_without_a_kernel_is_refused_by_name():
    x = value(ir.DataType.BFLOAT16)
    graph = graph_of(ir.node("Clip", [x], name="model.clip"), x)
    with pytest.raises(UnsupportedError, match=r"no CUDA kernel for model.clip, ai.onnx::Clip of T = bfloat16"):
        require_kernels(graph, Target("cuda", "bfloat16"))


def test_an_unknown_operator_is_refused():
    x = value(ir.DataType.FLOAT)
    graph = graph_of(ir.node("CastLike", [x, x], name="like"), x)
    assert [missing.operator for missing in find_missing(graph, Target())] == ["ai.onnx::CastLike"]


def test_mixed_types_have_no_kernel():
    x, y = value(ir.DataType.FLOAT), value(ir.DataType.INT64)
    graph = graph_of(ir.node("Add", [x, y], name="sum"), x, y)
    assert find_missing(graph, Target())[0].types == {"T": "float and int64"}


def test_cpus_compute_float16_in_float32_where_they_must():
    x = value(ir.DataType.FLOAT16)
    graph = graph_of(ir.node("MatMul", [x, x], name="product"), x)
    assert find_missing(graph, Target("cpu", "float16")) == []
    assert not Target("cpu", "float16").has_kernel("ai.onnx::MatMul")


def test_the_table_is_of_the_opset_of_the_graphs():
    assert opset() == OPSET
    assert builds() == {"cpu": "1.32.0", "cuda": "gpu 1.31.1"}


@pytest.mark.skipif(onnxruntime.__version__ != builds()["cpu"], reason="the table is of another ONNX Runtime")
def test_the_table_is_what_onnxruntime_registers():
    tool = runpy.run_path(str(ROOT / "tests/bench/kernel_table.py"))
    made = tool["table"](
        {"cpu": (onnxruntime.__version__, tool["registered"]("CPUExecutionProvider")), "cuda": ("", [])}
    )
    stored = json.loads((ROOT / "models/targets/kernels.json").read_text())["operators"]
    assert {name: operator["cpu"] for name, operator in made["operators"].items()} == {
        name: operator["cpu"] for name, operator in stored.items()
    }
