"""The outline of an ONNX file, read without the onnx package, against what the onnx package reads."""

import random

import onnx
import pytest
from onnx import TensorProto, helper

from runtime.bundle.onnx_outline import read_outline
from runtime.errors import IntegrityError


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_nodes_are_those_that_onnx_reads(tiny_bundle, phase):
    graph = onnx.load(tiny_bundle / f"{phase}.onnx", load_external_data=False).graph
    nodes = read_outline(tiny_bundle / f"{phase}.onnx").nodes
    assert [node.operator for node in nodes] == [f"{n.domain or 'ai.onnx'}::{n.op_type}" for n in graph.node]
    assert [(n.name, list(n.inputs), list(n.outputs)) for n in nodes] == [
        (n.name, n.input, n.output) for n in graph.node
    ]


def test_initializers_are_those_that_onnx_reads(tiny_bundle):
    graph = onnx.load(tiny_bundle / "prefill.onnx", load_external_data=False).graph
    found = {tensor.name: tensor for tensor in read_outline(tiny_bundle / "prefill.onnx").initializers}
    for tensor in graph.initializer:
        external = {entry.key: entry.value for entry in tensor.external_data}
        ours = found.pop(tensor.name)
        assert (ours.shape, ours.location) == (tuple(tensor.dims), external.get("location"))
        assert (ours.offset, ours.nbytes) == (int(external.get("offset", 0)), int(external.get("length", ours.nbytes)))
    assert found == {}


def test_integer_attributes_are_read(tmp_path):
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=96, N=64, bits=4)
    weight = helper.make_tensor("w", TensorProto.UINT8, [64, 3, 16], bytes(64 * 48), raw=True)
    onnx.save(helper.make_model(helper.make_graph([node], "g", [], [], [weight])), tmp_path / "x.onnx")
    outline = read_outline(tmp_path / "x.onnx")
    assert outline.nodes[0].integers == {"K": 96, "N": 64, "bits": 4}
    assert (outline.initializers[0].size, outline.initializers[0].nbytes) == (3072, 3072)


@pytest.mark.parametrize("content", [b"", b"\x00", b"not an onnx file", b"\xff" * 40, b"\x3a\x7f", b'{"a": 1}'])
def test_what_is_no_onnx_file_is_refused(tmp_path, content):
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(IntegrityError, match="not an ONNX file"):
        read_outline(tmp_path / "x.onnx")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(IntegrityError, match="cannot be read"):
        read_outline(tmp_path / "x.onnx")


@pytest.mark.timeout(60)
def test_cut_and_flipped_files_raise_our_error_only(tiny_bundle, tmp_path):
    rng, whole, refused = random.Random(4), (tiny_bundle / "decode.onnx").read_bytes(), 0
    for _ in range(300):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        (tmp_path / "x.onnx").write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.5 else data)
        try:
            read_outline(tmp_path / "x.onnx")
        except IntegrityError:
            refused += 1
    assert refused > 100
