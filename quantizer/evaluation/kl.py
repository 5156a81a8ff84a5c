"""What quantization costs: the distribution of the next token against the unquantized model, at every position.

Memory depends neither on the length of the text nor on the depth of a large model: some chunks of hidden states, a few
layers and a slice of logits at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.bundle import Bundle
from runtime.errors import QuantizationError

from ..calibration.segments import Arrays, Segment, body, empty_cache_feeds, find_cut, head
from ..graph.graphs import prefill_graph
from ..storage.matrix import Floats

_ROWS = 128  # of 49,152 logits in float32, twice: 50 MB
_BUCKETS = 32
_LEVEL = "accuracy_level"
OPEN_BYTES = 1 << 30  # of weights of either model, as they are stored
_TOGETHER = 32  # chunks whose hidden states are in memory: of 4,096 values, 16,384 tokens take 270 MB
IntArray = npt.NDArray[np.int64]
Head = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Scores:
    """A model against its reference, in nats per token, over all positions of all chunks.

    Attributes:
        kl: mean Kullback-Leibler divergence of the model's next-token distribution from the reference's.
        kl_late: the same over the second half of each chunk, where the context is longer.
        kl_p99: the 99th percentile of the KL divergence.
        top1: share of positions where both prefer the same token.
        perplexity, reference_perplexity: of the text, under the model and under the reference.
        tokens: positions that were compared.
        bucket: positions that one entry of `kl_by_position` averages.
        kl_by_position: mean KL over all chunks, by position in the chunk.
    """

    kl: float
    kl_late: float
    kl_p99: float
    top1: float
    perplexity: float
    reference_perplexity: float
    tokens: int
    bucket: int
    kl_by_position: tuple[float, ...]


class Model:
    """A bundle's prefill graph, opened for logits at all positions.

    Args:
        bundle: any.
        float_activations: multiply packed weights by activations as they are, not rounded to 8 bits for speed.
    """

    def __init__(self, bundle: Bundle, *, float_activations: bool = False) -> None:
        if bundle.manifest.task is not None:
            raise QuantizationError(
                f"{bundle.folder} gives no next token: `onnxlm eval` compares its embeddings or scores by their cosine."
            )
        self._graph = graph = prefill_graph(bundle)
        if float_activations:
            for node in rounding_nodes(graph):
                node.attributes[_LEVEL] = ir.AttrInt64(_LEVEL, 0)
        self._cut = cut = find_cut(graph)
        self._bundle = bundle
        self._rows = str(cut.head_input.name)
        self._packed = bundle.manifest.quantization is not None
        self._head = self._open(with_log_softmax(head(graph, cut)))
        self._pieces = _pieces(graph, len(cut.borders) + 1)
        self._whole = self._body(self._pieces[0]) if len(self._pieces) == 1 else None

    def hidden(self, ids: IntArray) -> Floats:
        """What the head reads, `[batch, sequence, H]`, for sequences `ids` `[batch, sequence]`.

        Of a large model, a few layers are in memory at a time: all sequences run through them before the next.
        """
        states: list[Arrays] = [{} for _ in ids]
        for piece in self._pieces:
            segment = self._whole or self._body(piece)
            for number, one in enumerate(ids):
                states[number] = segment(empty_cache_feeds(self._bundle, one[None], segment.inputs) | states[number])
        return np.concatenate([found[str(self._cut.hidden.name)] for found in states])

    def _body(self, layers: tuple[int, int]) -> Segment:
        return self._open(body(self._graph, self._cut, *layers))

    def _open(self, model: ir.Model) -> Segment:
        return Segment(model, self._bundle.folder, prepacked=self._packed)

    def log_probabilities(self, rows: Floats) -> Floats:
        """`[rows, H]` → log of the next-token distribution, `[rows, vocabulary]`."""
        (values,) = self._head({self._rows: rows}).values()
        return values


def evaluate(
    model: Model,
    reference: Model,
    chunks: IntArray,
    progress: Callable[[int], None] | None = None,
    rows: int = _ROWS,
) -> Scores:
    """Compare on `chunks` `[chunks, sequence]` of token ids.

    Args:
        model: the one that is judged.
        reference: the one that it was made from.
        chunks: token ids.
        progress: is told the positions of each chunk.
        rows: positions whose logits are in memory at once.

    Raises:
        QuantizationError: no text.
    """
    if chunks.size == 0:
        raise QuantizationError("the text is empty; give at least a few hundred tokens.")
    parts = []
    for first in range(0, len(chunks), _TOGETHER):
        some = chunks[first : first + _TOGETHER]
        for ours, theirs, ids in zip(model.hidden(some), reference.hidden(some), some, strict=True):
            parts.append(_compare(model.log_probabilities, ours, reference.log_probabilities, theirs, ids, rows))
            if progress:
                progress(len(ids))
    return _summarize([np.concatenate(columns) for columns in zip(*parts, strict=True)], chunks.shape)


def rounding_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Products that round their activations to 8 bits."""
    return [node for node in graph if node.attributes.get_int(_LEVEL, 0) == 4]


def _pieces(graph: ir.Graph, layers: int) -> list[tuple[int, int]]:
    """The layers that are open together, each piece from its first to behind its last."""
    size = sum(value.const_value.nbytes for value in graph.initializers.values() if value.const_value is not None)
    count = min(layers, -(-size // OPEN_BYTES) or 1)
    edges = [layers * number // count for number in range(count + 1)]
    return [*pairwise(edges)]


def _compare(
    model: Head, ours: Floats, reference: Head, theirs: Floats, ids: IntArray, at_once: int
) -> tuple[Floats, ...]:
    """Per position of one chunk: KL, agreement, log-probability of the next token under both (NaN for the last)."""
    following = np.append(ids[1:], -1)
    rows = [
        _compare_rows(model(ours[part]), reference(theirs[part]), following[part])
        for part in _slices(len(ids), at_once)
    ]
    return tuple(np.concatenate(columns) for columns in zip(*rows, strict=True))


def _compare_rows(ours: Floats, theirs: Floats, following: IntArray) -> tuple[Floats, ...]:
    agree = (ours.argmax(axis=1) == theirs.argmax(axis=1)).astype(np.float32)
    at = np.arange(len(following))
    known = np.where(following >= 0, np.float32(1), np.float32(np.nan))
    next_ours, next_theirs = ours[at, following] * known, theirs[at, following] * known
    gap = np.subtract(theirs, ours, out=ours)
    kl = np.einsum("nv,nv->n", np.exp(theirs, out=theirs), gap)
    return kl, agree, next_ours, next_theirs


def _summarize(columns: list[Floats], shape: tuple[int, ...]) -> Scores:
    kl, agree, ours, theirs = (column.astype(np.float64) for column in columns)
    late = kl.reshape(shape)[:, shape[1] // 2 :]
    by_position = kl.reshape(shape).mean(axis=0)
    bucket = max(1, shape[1] // _BUCKETS)
    edges = np.arange(bucket, shape[1], bucket)
    return Scores(
        kl=float(kl.mean()),
        kl_late=float(late.mean()),
        kl_p99=float(np.quantile(kl, 0.99)),
        top1=float(agree.mean()),
        perplexity=float(np.exp(-np.nanmean(ours))),
        reference_perplexity=float(np.exp(-np.nanmean(theirs))),
        tokens=kl.size,
        bucket=bucket,
        kl_by_position=tuple(float(part.mean()) for part in np.split(by_position, edges)),
    )


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


def with_log_softmax(model: ir.Model) -> ir.Model:
    """The head with logits turned into log-probabilities, in float32 whatever type the logits have."""
    logits = model.graph.outputs[0]
    if logits.dtype != ir.DataType.FLOAT:
        cast = ir.node("Cast", [logits], {"to": ir.DataType.FLOAT}, name="float_logits")
        cast.outputs[0].name, cast.outputs[0].type = "float_logits", ir.TensorType(ir.DataType.FLOAT)
        model.graph.append(cast)
        logits = cast.outputs[0]
    node = ir.node("LogSoftmax", [logits], {"axis": -1}, name="log_probabilities")
    node.outputs[0].name, node.outputs[0].type = "log_probabilities", ir.TensorType(ir.DataType.FLOAT)
    model.graph.append(node)
    model.graph.outputs[0] = node.outputs[0]
    return model
