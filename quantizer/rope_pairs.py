"""Which channels of stored keys turn into each other with the position, and how large they can become by that.

Keys are stored after rope. What a channel holds within a short text does not bound what it holds far behind: a slow
pair has hardly turned by then. The radius of the pair does, for it is the same at every position.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.errors import QuantizationError

from .matrix import Floats
from .weights_file import read_tensor

_KEY, _PAST_KEY, _COS = 1, 3, 7  # inputs of GroupQueryAttention
_COS_OF_ROTARY_EMBEDDING = 2
_BETWEEN = ("Reshape", "Cast", "Clip", "Min", "Max", "RMSNormalization")  # what may stand between rope and attention


@dataclass(frozen=True)
class RopePairs:
    """The turning pairs of one layer's keys.

    Attributes:
        first, second: the channels of each pair, `[pairs]`; other channels do not turn.
        gain: what multiplies channels that have turned already, `[kv_heads or 1, head_dim or 1]`, nowhere 0.
    """

    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    gain: Floats

    def largest(self, keys: Floats) -> Floats:
        """The largest magnitude of each channel `[kv_heads, head_dim]` over keys `[kv_heads, n, head_dim]`, wherever
        these stood."""
        turned = keys / self.gain[:, None]
        largest: Floats = np.abs(turned).max(axis=1)
        radius = np.hypot(turned[..., self.first], turned[..., self.second]).max(axis=1)
        largest[:, self.first] = largest[:, self.second] = radius
        return largest * self.gain


def find_rope_pairs(graph: ir.Graph) -> dict[str, RopePairs]:
    """Of every layer whose keys are rotated, inside its attention or before it, by the name of its past keys.

    Raises:
        QuantizationError: a rope's width is not written in the graph.
    """
    found: dict[str, RopePairs] = {}
    for node in graph:
        past = node.inputs[_PAST_KEY] if node.op_type == "GroupQueryAttention" else None
        pairs = _pairs(node) if past is not None and past.is_graph_input() else None
        if past is not None and pairs is not None:
            found[str(past.name)] = pairs
    return found


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
    half = cos.shape[-1] if cos is not None and cos.shape is not None else None
    if cos is None or not isinstance(half, int):
        raise QuantizationError(
            f"prefill graph: the shape of {cos and cos.name!r} is not known. Export the model again."
        )
    pairs = np.arange(half, dtype=np.int64)
    pairs = pairs[_turning(cos, half)]
    return RopePairs(2 * pairs, 2 * pairs + 1, gain) if interleaved else RopePairs(pairs, pairs + half, gain)


def _turning(cos: ir.Value, half: int) -> npt.NDArray[np.bool_]:
    """Which pairs have a frequency, in any table that `cos` is made of; all where the frequencies are not found."""
    constants = [value.const_value for value in _origins(cos)]
    rows = [read_tensor(t).reshape(-1) for t in constants if t is not None and t.shape.numpy() == (1, half)]
    return np.any([row != 0 for row in rows], axis=0) if rows else np.ones(half, bool)


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
    weight = np.abs(read_tensor(value.const_value)).astype(np.float32).reshape(-1, int(past.shape[3]))  # type: ignore[arg-type]
    return np.where(weight == 0, np.float32(1), weight)
