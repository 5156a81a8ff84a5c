"""KL by layer: what each layer costs when it alone is the quantized model's, and all others are the reference's.

Text runs through the reference once. Beside it run the streams that one layer of the quantized model has already
changed, so each layer of either model is opened once:

```
reference   ─ layer 0 ─┬─ layer 1 ─┬─ layer 2 ─ … ─ head → log p
quantized 0 ─ layer 0'─┼─ layer 1 ─┼─ layer 2 ─ … ─ head → log q₀
quantized 1            └─ layer 1'─┼─ layer 2 ─ … ─ head → log q₁
```
The quantizer may have reordered the channels of the residual stream. The order is found from the values themselves, and
nothing is reported where they do not match.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.bundle import Bundle

from ..calibration.segments import Arrays, Cut, Segment, body, empty_cache_feeds, find_cut, head
from ..graph.graphs import prefill_graph
from ..progress import Progress
from ..storage.matrix import Floats
from .kl import with_log_softmax

_CHUNKS, _LENGTH = 2, 96  # tokens: each layer is run as often as there are layers before it
_STRIDE = 2  # neighbours tell much the same, and the head costs as much as many layers
_FARTHEST = 0.5  # relative distance at which two models are no longer the same layer by layer
IntArray = npt.NDArray[np.int64]
Order = npt.NDArray[np.intp]


@dataclass(frozen=True)
class LayerLoss:
    """Mean KL in nats per token with one part quantized; the token table counts with layer 0.

    Attributes:
        layers: of each layer.
        head: of the head.
        tokens: positions that each figure is a mean of.
    """

    layers: tuple[float, ...]
    head: float
    tokens: int


def kl_by_layer(bundle: Bundle, reference: Bundle, chunks: IntArray, progress: Progress) -> LayerLoss | None:
    """Measure on the first tokens of `chunks` `[chunks, sequence]`; None if layers cannot be exchanged one by one."""
    ours, theirs = _Pieces(bundle), _Pieces(reference)
    if ours.borders != theirs.borders:
        return None
    streams = _Streams(ours, theirs, chunks[:_CHUNKS, :_LENGTH])
    for layer in range(theirs.layers):
        progress("measuring KL by layer", layer, theirs.layers)
        if not streams.advance(layer):
            return None
    return streams.losses()


class _Pieces:
    """The layers of a model, each opened when it is asked for."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._graph: ir.Graph = prefill_graph(bundle)
        self._cut: Cut = find_cut(self._graph)
        self.layers = len(self._cut.borders) + 1
        self.borders = [sorted(str(value.name) for value in border) for border in self._cut.borders]
        self._hidden, self._rows = str(self._cut.hidden.name), str(self._cut.head_input.name)

    def run(self, layer: int, streams: Sequence[Arrays], ids: IntArray) -> list[Arrays]:
        """What crosses into layer `layer` of each stream → what crosses into the next; "hidden" behind the last."""
        piece = Segment(body(self._graph, self._cut, layer, layer + 1), self.bundle.folder)
        feeds = empty_cache_feeds(self.bundle, ids, piece.inputs)
        found = [piece(feeds | values) for values in streams]
        return [{"hidden": values[self._hidden]} for values in found] if layer == self.layers - 1 else found

    def log_probabilities(self, streams: Sequence[Arrays]) -> Iterator[Floats]:
        """Log of the next-token distribution at every second position, `[rows, vocabulary]`, of each stream."""
        piece = Segment(with_log_softmax(head(self._graph, self._cut)), self.bundle.folder)
        for values in streams:
            rows = values["hidden"].reshape(-1, values["hidden"].shape[-1])[::_STRIDE]
            yield from piece({self._rows: np.ascontiguousarray(rows)}).values()


class _Streams:
    """The reference's values and those of each layer that was exchanged, in the reference's order of channels."""

    def __init__(self, ours: _Pieces, theirs: _Pieces, ids: IntArray) -> None:
        self._ours, self._theirs, self._ids = ours, theirs, ids
        self._size = theirs.bundle.manifest.architecture.hidden_size
        self._order: Order | None = None
        self._text: Arrays = {}
        self._exchanged: list[Arrays] = []

    def advance(self, layer: int) -> bool:
        """Run the next layer, and begin the stream that it changes; False if the two models do not match there."""
        (begun,) = self._ours.run(layer, [self._reordered(self._text, self._order)], self._ids)
        self._text, *self._exchanged = self._theirs.run(layer, [self._text, *self._exchanged], self._ids)
        if self._order is None:
            self._order = find_order(self._residual(begun), self._residual(self._text))
        begun = self._reordered(begun, np.argsort(self._order))
        self._exchanged.append(begun)
        return _distance(self._residual(begun), self._residual(self._text)) < _FARTHEST

    def losses(self) -> LayerLoss:
        """KL of every stream, and of the quantized head on the reference's values."""
        expected, *found = self._theirs.log_probabilities([self._text, *self._exchanged])
        (by_head,) = self._ours.log_probabilities([self._reordered(self._text, self._order)])
        by_layer = tuple(_kl(expected, values) for values in found)
        return LayerLoss(by_layer, _kl(expected, by_head), len(expected))

    def _is_stream(self, value: Floats) -> bool:
        return value.dtype.kind == "f" and value.ndim == 3 and value.shape[-1] == self._size

    def _reordered(self, values: Arrays, order: Order | None) -> Arrays:
        return {n: v[..., order] if order is not None and self._is_stream(v) else v for n, v in values.items()}

    def _residual(self, values: Arrays) -> Floats:
        """The sum of what crosses, `[tokens, H]`: a layer may leave its last addition to the next one."""
        parts = [v.reshape(-1, self._size).astype(np.float32) for v in values.values() if self._is_stream(v)]
        return np.asarray(np.sum(parts, axis=0))


def find_order(value: Floats, expected: Floats) -> Order:
    """For each channel of `value` `[tokens, H]` the nearest one of `expected`: its own where nothing was reordered."""
    if _distance(value, expected) < _FARTHEST:
        return np.arange(value.shape[-1])
    # ‖a − b‖² without ‖a‖², which is the same for every b
    return np.asarray((np.square(expected).sum(axis=0) - 2 * value.T @ expected).argmin(axis=1))


def _distance(value: Floats, expected: Floats) -> float:
    return float(np.linalg.norm(value - expected) / (np.linalg.norm(expected) or 1.0))


def _kl(expected: Floats, found: Floats) -> float:
    return float((np.exp(expected) * (expected - found)).sum(axis=-1, dtype=np.float64).mean())
