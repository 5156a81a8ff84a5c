"""Which channels of stored keys turn into each other with the position, and how large they can become by that.

Keys are stored after rope. What a channel holds within a short text does not bound what it holds far behind: a slow
pair has hardly turned by then. What bounds it is the arc that the pair runs through in the whole context; of pairs that
come around, the radius.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.errors import QuantizationError

from ..storage.matrix import Floats
from ..storage.weights_file import read_tensor

_KEY, _PAST_KEY, _COS = 1, 3, 7  # inputs of GroupQueryAttention
_COS_OF_ROTARY_EMBEDDING = 2
_BETWEEN = ("Reshape", "Cast", "Clip", "Min", "Max", "RMSNormalization")  # what may stand between rope and attention


@dataclass(frozen=True)
class RopePairs:
    """The turning pairs of one layer's keys.

    Attributes:
        first, second: the channels of each pair, `[pairs]`; other channels do not turn.
        frequency: radians that each pair turns by from one position to the next, `[pairs]`.
        context: positions that there are.
        gain: what multiplies channels that have turned already, `[kv_heads or 1, head_dim or 1]`, nowhere 0.
    """

    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    frequency: Floats
    context: int
    gain: Floats

    def largest(self, keys: Floats, start: int = 0) -> Floats:
        """The largest magnitude of each channel `[kv_heads, head_dim]` over keys `[kv_heads, n, head_dim]`, which stand
        at positions `start …`, if they stood anywhere in the context."""
        transposed = keys / self.gain[:, None]
        largest: Floats = np.abs(transposed).max(axis=1)
        x, y = transposed[..., self.first], transposed[..., self.second]
        positions = np.arange(start, start + keys.shape[1], dtype=np.float32)[:, None]
        begin = np.arctan2(y, x) - positions * self.frequency
        end = begin + (self.context - 1) * self.frequency
        for channels, quarter in ((self.first, 0.0), (self.second, np.pi / 2)):
            largest[:, channels] = (np.hypot(x, y) * _largest_cosine(begin - quarter, end - quarter)).max(axis=1)
        return largest * np.abs(self.gain)


def _largest_cosine(begin: Floats, end: Floats) -> Floats:
    """The largest |cos| of any angle between two."""
    passes_one = np.floor(begin / np.pi) < np.floor(end / np.pi)  # a multiple of pi
    largest: Floats = np.where(passes_one, 1, np.maximum(np.abs(np.cos(begin)), np.abs(np.cos(end))))
    return largest


def find_rope_pairs(graph: ir.Graph) -> dict[str, RopePairs]:
    """Of every layer whose keys are rotated, inside its attention or before it, by the name of its past keys.

    Raises:
        QuantizationError: a rope's width is not written in the graph.
    """
    found: dict[str, RopePairs] = {}
    for node in attentions(graph):
        past = node.inputs[_PAST_KEY]
        pairs = _pairs(node) if past is not None and past.is_graph_input() else None
        if past is not None and pairs is not None:
            found[str(past.name)] = pairs
    return found


def attentions(graph: ir.Graph) -> list[ir.Node]:
    """The nodes that read and write the cache."""
    return [node for node in graph if node.op_type == "GroupQueryAttention"]


def _pairs(attention: ir.Node) -> RopePairs | None:
    """The pairs of one layer; None where nothing turns."""
    if attention.attributes.get_int("do_rotary", 0):
        interleaved = attention.attributes.get_int("rotary_interleaved", 0)
        return _pairs_of(attention.inputs[_COS], bool(interleaved), np.ones((1, 1), np.float32))
    gain = np.ones((1, 1), np.float32)
    for node in _before(attention.inputs[_KEY]):
        if node.op_type == "RotaryEmbedding":
            interleaved = node.attributes.get_int("interleaved", 0)
            return _pairs_of(node.inputs[_COS_OF_ROTARY_EMBEDDING], bool(interleaved), gain)
        if node.op_type == "RMSNormalization":
            gain = gain * _weight(attention, node)
    return None


def _pairs_of(cos: ir.Value | None, interleaved: bool, gain: Floats) -> RopePairs:
    shape = cos.shape if cos is not None else None
    if cos is None or shape is None or not shape.is_static():
        raise QuantizationError(
            f"prefill graph: the shape of {cos and cos.name!r} is not known. Export the model again."
        )
    context, half = shape.numpy()
    frequency = _frequency(cos, half)
    pairs = np.flatnonzero(frequency)
    first, second = (2 * pairs, 2 * pairs + 1) if interleaved else (pairs, pairs + half)
    return RopePairs(first, second, frequency[pairs], context, gain)


def _frequency(cos: ir.Value, half: int) -> Floats:
    """Of each pair. Those of tables that switch are half a turn, as if they came around: so any arc is allowed for."""
    constants = [value.const_value for value in _origins(cos)]
    rows = [read_tensor(t).reshape(-1) for t in constants if t is not None and t.shape.numpy() == (1, half)]
    if len(rows) == 1:
        return rows[0].astype(np.float32)
    turning = np.any([row != 0 for row in rows], axis=0) if rows else np.ones(half, bool)
    return np.where(turning, np.float32(np.pi), np.float32(0))


def _origins(value: ir.Value) -> Iterator[ir.Value]:
    """A value, and all that it is computed from."""
    yield value
    producer = value.producer()
    for origin in producer.inputs if producer is not None else ():
        if origin is not None:
            yield from _origins(origin)


def _before(key: ir.Value | None) -> Iterator[ir.Node]:
    """The nodes that keys pass after rope, from the attention backwards, and the one before them."""
    node = key.producer() if key is not None else None
    while node is not None:
        yield node
        before = node.inputs[0] if node.op_type in _BETWEEN else None
        node = before.producer() if before is not None else None


def _weight(attention: ir.Node, norm: ir.Node) -> Floats:
    """A norm's weight by head and channel, 1 where it is 0: what is always 0 needs no scale."""
    value, past = norm.inputs[1], attention.inputs[_PAST_KEY]
    assert value is not None
    assert value.const_value is not None
    assert past is not None
    assert past.shape is not None
    weight = read_tensor(value.const_value).astype(np.float32).reshape(-1, int(past.shape[3]))  # type: ignore[arg-type]
    return np.where(weight == 0, np.float32(1), weight)
