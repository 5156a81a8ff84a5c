"""Graphs over packed weights read well: casts of scales stand beside what they are for, and change nothing there."""

import onnx_ir as ir
import pytest

from quantizer import quantize
from quantizer.graph.order import move_to_use


@pytest.mark.parametrize("graph", ["prefill.onnx", "decode.onnx"])
def test_casts_of_scales_stand_in_front_of_their_use(tiny_bundle, tmp_path, graph):
    quantize(tiny_bundle, tmp_path / "int4", bits=4, group_size=32)
    nodes = list(ir.load(tmp_path / "int4" / graph).graph)
    casts = [place for place, node in enumerate(nodes) if node.name.endswith(".scales_cast")]
    assert len(casts) > 8
    assert all(nodes[place].outputs[0] in nodes[place + 1].inputs for place in casts)
    assert all(node.name for node in nodes)


def test_a_shared_cast_stands_before_its_first_use_and_keeps_its_order():
    weight = ir.val("w", ir.DataType.FLOAT16, [2], const_value=ir.tensor([1.0, 2.0], ir.DataType.FLOAT16))
    x = ir.val("x", ir.DataType.FLOAT, [2])
    cast = ir.node("Cast", [weight], {"to": ir.DataType.FLOAT}, name="cast")
    square = ir.node("Mul", [cast.outputs[0], cast.outputs[0]], name="square")
    nodes = [cast, square, ir.node("Neg", [x], name="neg")]
    nodes.append(ir.node("Add", [nodes[2].outputs[0], square.outputs[0]], name="first"))
    nodes.append(ir.node("Add", [nodes[3].outputs[0], square.outputs[0]], name="second"))
    graph = ir.Graph([x], nodes[-1].outputs, nodes=nodes, initializers=[weight], opset_imports={"": 21})
    move_to_use(graph)
    assert [node.name for node in graph] == ["neg", "cast", "square", "first", "second"]
