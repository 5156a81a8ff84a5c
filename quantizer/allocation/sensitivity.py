"""How much each matrix matters: the KL of the final logits when it alone is quantized.

Never the error of the layer: the matrix that caused 40 % of all damage in the model this was developed on ranked first
by KL, and 27th or 69th by error.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.bundle import Bundle

from ..calibration.segments import Arrays, Segment, body, empty_cache_feeds, find_cut, head
from ..evaluation.kl import with_log_softmax
from ..graph.graphs import prefill_graph
from ..storage.matrix import Floats

IntArray = npt.NDArray[np.int64]


_CHUNKS = 4
_LENGTHS = (32, 96)  # tokens of each, a 32nd of the text in all: more ranks matrices no better
_SHARE = 128
_HEAD_STRIDE = 2  # neighbours tell much the same, and the head costs as much as many layers


def sample(chunks: IntArray) -> IntArray:
    """A few hundred of the calibration tokens, from chunks spread over all of them."""
    count = min(_CHUNKS, len(chunks))
    length = min(max(_LENGTHS[0], chunks.size // _SHARE), _LENGTHS[1], chunks.shape[1])
    return chunks[np.linspace(0, len(chunks) - 1, count).astype(int), :length]


class Sensitivity:
    """The float model on a few chunks, with the hidden states in front of every layer kept.

    Args:
        bundle: float weights.
        chunks: `[chunks, sequence]`, a few hundred token ids in all; run as one batch.
    """

    def __init__(self, bundle: Bundle, chunks: IntArray) -> None:
        graph = prefill_graph(bundle)
        self._cut = find_cut(graph)
        self._folder = bundle.folder
        layers = len(self._cut.borders) + 1
        self._models = [body(graph, self._cut, i, i + 1) for i in range(layers)]
        self._layers = [Segment(model, bundle.folder, prepacked=False) for model in self._models]
        self._head_model = with_log_softmax(head(graph, self._cut))
        self._head = Segment(self._head_model, bundle.folder, prepacked=False)
        self._inputs = empty_cache_feeds(bundle, chunks)
        self._states = self._run_all()
        self._reference = self._log_probabilities(self._states[-1], self._head)
        self._probabilities = np.exp(self._reference)

    def kl(self, replaced: Mapping[str, npt.NDArray[np.float32]]) -> float:
        """Mean KL divergence in nats when the initializers in `replaced` take these values."""
        first = min((i for i, model in enumerate(self._models) if _uses(model, replaced)), default=len(self._models))
        states = self._states[first]
        for model, segment in list(zip(self._models, self._layers, strict=True))[first:]:
            states = self._opened(model, segment, replaced)(self._inputs | states)
        ours = self._log_probabilities(states, self._opened(self._head_model, self._head, replaced))
        gap = np.subtract(self._reference, ours, out=ours)
        return float(np.einsum("nv,nv->n", self._probabilities, gap).mean())

    def _opened(self, model: ir.Model, segment: Segment, replaced: Mapping[str, npt.NDArray[np.float32]]) -> Segment:
        names = [name for name in replaced if name in model.graph.initializers]
        if not names:
            return segment
        return Segment(model, self._folder, {name: replaced[name] for name in names}, prepacked=False)

    def _run_all(self) -> list[Arrays]:
        states: list[Arrays] = [{}]
        for segment in self._layers:
            states.append(segment(self._inputs | states[-1]))
        return states

    def _log_probabilities(self, states: Arrays, segment: Segment) -> Floats:
        hidden = states[str(self._cut.hidden.name)]
        rows = np.ascontiguousarray(hidden.reshape(-1, hidden.shape[-1])[::_HEAD_STRIDE])
        (values,) = segment({str(self._cut.head_input.name): rows}).values()
        return values


def _uses(model: ir.Model, replaced: Mapping[str, object]) -> bool:
    return any(name in model.graph.initializers for name in replaced)
