"""The residual stream: everything that one order of the hidden channels would touch.

The walk follows the values whose last axis is the hidden one, in order of the graph, and gives up at the first node
that it does not know: then the channels keep their natural order, and nothing is lost but a little quality.
"""

from dataclasses import dataclass, field

import onnx_ir as ir

from ..graph.quantizable import use_of

# norms: position of the first of their vectors (gain, bias), and of the first operand
_NORMS = {"SimplifiedLayerNormalization": 1, "RMSNormalization": 1, "LayerNormalization": 1}
_SKIP_NORMS = {"SkipSimplifiedLayerNormalization": 2, "SkipLayerNormalization": 2}
_PASSES_CHANNELS = ("GatherND", "Cast", "Identity")  # the channel axis stays last, untouched


@dataclass(frozen=True)
class Stream:
    """What touches the residual stream of `size` channels.

    Attributes:
        inputs: matrices whose inputs are its channels: tables, readers.
        outputs: matrices and vectors whose outputs are its channels: writers, their biases, gains.
    """

    size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def find_stream(graph: ir.Graph, vocab_size: int) -> Stream | None:
    """Follow the stream from the embedding; None if anything on the way is unknown."""
    walk = _Walk(vocab_size)
    for node in graph:
        if not walk.step(node):
            return None
    return walk.result(graph)


def norm_vectors(node: ir.Node) -> list[ir.Value]:
    """Gain and bias of a norm node; empty for any other node."""
    first = {**_NORMS, **_SKIP_NORMS}.get(node.op_type)
    if first is None:
        return []
    vectors = node.inputs[first : first + 2]
    return [value for value in vectors if value is not None]


@dataclass
class _Walk:
    vocab_size: int
    size: int = 0
    inputs: dict[ir.Value, None] = field(default_factory=dict)
    outputs: dict[ir.Value, None] = field(default_factory=dict)
    _on_stream: set[ir.Value] = field(default_factory=set)
    _seen: set[ir.Node] = field(default_factory=set)

    def step(self, node: ir.Node) -> bool:
        """Follow one node; False if it takes the stream where this cannot follow."""
        if self._is_embedding(node):
            self._seen.add(node)
            self._on_stream.add(node.outputs[0])
            return True
        if self._on_stream.isdisjoint(node.inputs):
            return True
        self._seen.add(node)
        return self._follow(node)

    def result(self, graph: ir.Graph) -> Stream | None:
        """The stream, if every weight on it is on disk and used by nothing else."""
        if not self.inputs or any(value in self._on_stream for value in graph.outputs):
            return None
        for value in (*self.inputs, *self.outputs):
            if not isinstance(value.const_value, ir.ExternalTensor) or not self._seen.issuperset(value.consumers()):
                return None
        return Stream(self.size, _names(self.inputs), _names(self.outputs))

    def _is_embedding(self, node: ir.Node) -> bool:
        weight = node.inputs[0] if node.op_type == "Gather" else None
        if weight is None or weight.const_value is None or use_of(node, weight) is None:
            return False
        shape = weight.const_value.shape.numpy()
        if len(shape) != 2 or shape[1] != (self.size or shape[1]) or (not self.size and shape[0] != self.vocab_size):
            return False
        self.inputs[weight] = None
        self.size = int(shape[1])
        return True

    def _follow(self, node: ir.Node) -> bool:
        if node.op_type in (*_NORMS, *_SKIP_NORMS, "Add"):
            self._on_stream.update(value for i, value in enumerate(node.outputs) if i in (0, 3))
            return all(value is None or self._belongs(value) for value in node.inputs)
        if node.op_type == "Mul":
            self._on_stream.add(node.outputs[0])
            others = [ir.convenience.get_const_tensor(v) for v in node.inputs if v and v not in self._on_stream]
            return all(tensor is not None and tensor.size == 1 for tensor in others)
        if node.op_type in _PASSES_CHANNELS:
            self._on_stream.add(node.outputs[0])
            return node.inputs[0] in self._on_stream
        return self._reads(node)

    def _reads(self, node: ir.Node) -> bool:
        weight = node.inputs[1] if node.op_type in ("MatMul", "Gemm") else None
        if weight is None or weight.const_value is None or use_of(node, weight) is None:
            return False
        self.inputs[weight] = None
        return True

    def _belongs(self, value: ir.Value) -> bool:
        """On the stream already, or written to it: by a matrix, a sum or norm of such, or as a vector of its size."""
        if value in self._on_stream:
            return True
        if value.const_value is not None:
            return self._is_vector(value)
        node = value.producer()
        if node is None or len(list(value.consumers())) != 1:
            return False
        self._seen.add(node)
        if node.op_type in (*_NORMS, "Add"):
            return all(part is None or self._belongs(part) for part in node.inputs)
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        if weight is None or weight.const_value is None or use_of(node, weight) is None:
            return False
        self.outputs[weight] = None
        return True

    def _is_vector(self, value: ir.Value) -> bool:
        tensor = value.const_value
        assert tensor is not None
        if tensor.size == 1:
            return True
        if tuple(tensor.shape.numpy()) != (self.size,):
            return False
        if not isinstance(tensor, ir.ExternalTensor) and (array := tensor.numpy()).min() == array.max():
            return True  # a norm without weights: ones or zeros, the same in any order
        self.outputs[value] = None
        return True


def _names(values: dict[ir.Value, None]) -> tuple[str, ...]:
    return tuple(str(value.name) for value in values)
