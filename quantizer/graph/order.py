"""The order of a graph's nodes, for those who look at it: what is made of weights alone stands beside its use."""

import onnx_ir as ir

_STEP = 1e-6  # of a position: smaller than the distance between two nodes, however many are inserted


def move_to_use(graph: ir.Graph) -> None:
    """Put each node that reads nothing but initializers, or other such nodes, in front of the first node it is for."""
    places: dict[ir.Node, float] = {node: place for place, node in enumerate(graph)}
    for node in reversed(_of_weights(graph)):
        users = list(node.outputs[0].consumers())
        if users:
            first = min(users, key=places.__getitem__)
            graph.remove(node)
            graph.insert_before(first, node)
            places[node] = places[first] - _STEP


def _of_weights(graph: ir.Graph) -> list[ir.Node]:
    """Casts of weights and their products, in the order of the graph."""
    found: list[ir.Node] = []
    known: set[ir.Value] = set(graph.initializers.values())
    for node in graph:
        if node.op_type in ("Cast", "Mul") and known.issuperset(node.inputs):
            found.append(node)
            known.update(node.outputs)
    return found
