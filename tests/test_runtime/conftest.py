"""A synthetic model with a known answer: its next token depends on the last token, the length and every key and value.

    ids ─► value = [id, id·(position mod 7)] ─► GroupQueryAttention (q = k = 0, so the mean of all values) ─► sums

    next = (3·last + 5·length + Σ id + 2·Σ id·(position mod 7)) mod 320,    logits[v] = −(v − next)²

All of it is small integers, exact in float32: a row that reads one token of another row, a position too many or too
few, or a stale value, gives another token.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.bundle.manifest import (
    Architecture,
    Graph,
    Graphs,
    KVCache,
    Layer,
    Manifest,
    Producer,
    Source,
    Target,
    TensorSpec,
    Tokens,
    Verification,
)  # fmt: skip
from runtime.ort.session import operator_has_input
from runtime.text.tokenizer import Tokenizer

VOCAB = 320
CONTEXT = 256
WIDTH = 8  # the head size; only the first two channels are used


def next_token(tokens: list[int]) -> int:
    """What the synthetic model says after these tokens."""
    weighted = sum(token * (position % 7) for position, token in enumerate(tokens))
    return (3 * tokens[-1] + 5 * len(tokens) + sum(tokens) + 2 * weighted) % VOCAB


@pytest.fixture(scope="session")
def continuation() -> Callable[[list[int], int], list[int]]:
    """The synthetic model's greedy answer of a length, computed without a cache."""

    def continuation(prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(next_token(tokens))
        return tokens[len(prompt) :]

    return continuation


@pytest.fixture(scope="session")
def synthetic_bundle(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> Path:
    """The synthetic model as a bundle, with the tiny model's tokenizer; no id ends an answer."""
    return _write_bundle(tmp_path_factory.mktemp("synthetic"), tiny_bundle, counts=False)


@pytest.fixture(scope="session")
def batching_bundle(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> Path:
    """The synthetic model whose prefill takes chunks of several sequences."""
    if not operator_has_input("GroupQueryAttention", "query_seqlens"):
        pytest.skip("needs ONNX Runtime 1.32")
    return _write_bundle(tmp_path_factory.mktemp("batching"), tiny_bundle, counts=True)


def _write_bundle(folder: Path, tiny_bundle: Path, *, counts: bool) -> Path:
    from runtime.bundle.bundle import write_manifest

    shutil.copy(tiny_bundle / "tokenizer.json", folder)
    graphs = [_write_graph(folder, "prefill", counts), _write_graph(folder, "decode", counts=False)]
    manifest = Manifest(
        format_version=1,
        producer=Producer("tests", "1"),
        architecture=Architecture("synthetic", WIDTH, VOCAB, CONTEXT, 1, (Layer("full", None, 1, 1, WIDTH),)),
        graphs=Graphs(*graphs),
        kv_cache=KVCache("batch,kv_heads,capacity,head_dim", "float32", 2 * WIDTH * 4),
        tokens=Tokens(bos=None, eos=(), pad=None, special=()),
        target=Target("cpu", "float32", "1.31", ()),
        source=Source("synthetic", "safetensors", None, None, None),
        verification=Verification("none", None),
    )
    write_manifest(folder, manifest)
    return folder


def _write_graph(folder: Path, name: str, counts: bool) -> Graph:
    from onnx import checker, helper, save

    cache: Any = ["batch", 1, "capacity", WIDTH]
    inputs = {
        "input_ids": ("int64", ["batch", "sequence" if name == "prefill" else 1], "input_ids"),
        "seqlens_k": ("int32", ["batch"], "seqlens_k"),
        "total_sequence_length": ("int32", [], "total_sequence_length"),
        **({"logits_index": ("int64", ["selected", 2], "logits_index")} if name == "prefill" else {}),
        **({"query_seqlens": ("int32", ["batch"], "query_seqlens")} if counts else {}),
        "past_key_values.0.key": ("float32", cache, "past_key"),
        "past_key_values.0.value": ("float32", cache, "past_value"),
    }
    outputs = {
        "logits": ("float32", ["selected" if name == "prefill" else "batch", VOCAB], "logits"),
        "present.0.key": ("float32", cache, "present_key"),
        "present.0.value": ("float32", cache, "present_value"),
    }
    infos = [[_info(port, *entry[:2]) for port, entry in side.items()] for side in (inputs, outputs)]
    graph = helper.make_graph(_nodes(name == "prefill", counts), name, *infos, _constants())
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    checker.check_model(model)
    save(model, folder / f"{name}.onnx")
    return Graph(f"{name}.onnx", _ports(inputs), _ports(outputs))


def _nodes(prefill: bool, counts: bool) -> list[Any]:
    from onnx import helper

    def node(operator: str, inputs: str, output: str, **attributes: Any) -> Any:
        return helper.make_node(operator, inputs.split(), output.split(), **attributes)

    cache = ["past_key_values.0.key", "past_key_values.0.value"]
    more = [""] * 9 + ["query_seqlens"] if counts else []
    return [
        node("Shape", "input_ids", "S", start=1, end=2),  # [1]
        node("Squeeze", "S", "s"),
        node("Range", "i0 s i1", "steps"),  # [S]
        node("Cast", "seqlens_k", "last", to=7),
        node("Unsqueeze", "last one_axis", "last_column"),  # [B, 1]
        node("Cast", "query_seqlens" if counts else "S", "new", to=7),
        node("Unsqueeze", "new one_axis", "new_column"),  # [B, 1]
        node("Sub", "steps new_column", "back"),
        node("Add", "back i1", "offsets"),
        node("Add", "last_column offsets", "positions"),  # [B, S]; of padding, anything
        node("Mod", "positions i7", "weights"),
        node("Mul", "input_ids weights", "weighted"),
        node("Unsqueeze", "input_ids two_axis", "a"),
        node("Unsqueeze", "weighted two_axis", "b"),
        node("Concat", "a b", "pair", axis=2),  # [B, S, 2]
        node("Cast", "pair", "values", to=1),
        node("Pad", "values padding zero channels", "qkv"),  # [B, S, 24]: the values stand at 16 and 17
        helper.make_node(
            "GroupQueryAttention",
            ["qkv", "", "", *cache, "seqlens_k", "total_sequence_length", *more],
            ["means", "present.0.key", "present.0.value"],
            domain="com.microsoft",
            num_heads=1,
            kv_num_heads=1,
            do_rotary=0,
        ),
        *(
            [
                node("GatherND", "means logits_index", "mean"),  # [selected, 8]
                node("GatherND", "input_ids logits_index", "token"),
                node("GatherND", "positions logits_index", "position"),
            ]
            if prefill
            else [
                node("Squeeze", "means one_axis", "mean"),
                node("Squeeze", "input_ids one_axis", "token"),
                node("Identity", "last", "position"),
            ]
        ),
        node("Add", "position i1", "length"),  # [B]
        node("Cast", "length", "length_float", to=1),
        node("Unsqueeze", "length_float one_axis", "length_column"),
        node("Mul", "mean length_column", "sums_float"),
        node("Round", "sums_float", "sums_round"),
        node("Cast", "sums_round", "sums", to=7),  # [B, 8]
        node("Mul", "sums sum_factors", "sum_terms"),
        node("ReduceSum", "sum_terms one_axis", "sum", keepdims=0),
        node("Mul", "token i3", "three"),
        node("Mul", "length i5", "five"),
        node("Add", "three five", "some"),
        node("Add", "some sum", "all"),
        node("Mod", "all vocab", "next"),
        node("Unsqueeze", "next one_axis", "next_column"),
        node("Sub", "ids next_column", "distance"),  # [B, V]
        node("Mul", "distance distance", "square"),
        node("Neg", "square", "negative"),
        node("Cast", "negative", "logits", to=1),
    ]


def _constants() -> list[Any]:
    from onnx import numpy_helper

    constants = {
        **{f"i{value}": np.array(value) for value in (0, 1, 3, 5, 7)},
        "vocab": np.array(VOCAB),
        "ids": np.arange(VOCAB),
        "one_axis": np.array([1]),
        "two_axis": np.array([2]),
        "channels": np.array([2]),
        "padding": np.array([2 * WIDTH, WIDTH - 2]),
        "zero": np.array(0, np.float32),
        "sum_factors": np.array([1, 2] + [0] * (WIDTH - 2)),
    }
    return [numpy_helper.from_array(value, name) for name, value in constants.items()]


def _info(name: str, dtype: str, shape: list[int | str]) -> Any:
    from onnx import TensorProto, helper

    types = {"int64": TensorProto.INT64, "int32": TensorProto.INT32, "float32": TensorProto.FLOAT}
    return helper.make_tensor_value_info(name, types[dtype], shape)


def _ports(side: dict[str, tuple[Any, list[int | str], Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, tuple(shape), role) for name, (dtype, shape, role) in side.items())


@pytest.fixture(scope="session")
def tokenizer(tiny_bundle):
    return Tokenizer(tiny_bundle / "tokenizer.json")
