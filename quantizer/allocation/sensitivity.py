"""How much each matrix matters: the KL of the final logits when it alone is quantized.

Never the error of the layer: the matrix that caused 40 % of the loss in the model this was developed on ranked first
by KL, and 27th or 69th by error.

The work is linear in the depth. Text runs through the layers once, and beside it the same text as it becomes when one
matrix is replaced: a perturbed stream for each matrix. Where there are more streams than a layer is to carry, the two
that have moved least from the text are joined: their differences are added with random signs, one for each chunk, so
that their KLs add, too. What the sum causes in the end is shared by how far each had moved.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.bundle import Bundle

from ..calibration.segments import Arrays, Segment, body, empty_cache_feeds, find_cut, head
from ..evaluation.kl import with_log_softmax
from ..graph.graphs import prefill_graph
from ..storage.matrix import Floats

IntArray = npt.NDArray[np.int64]
Replaced = Mapping[str, npt.NDArray[np.float32]]

_CHUNKS = 4
_LENGTHS = (32, 96)  # tokens of each, a 32nd of the text in all; on SmolLM2-135M more ranked matrices no better
_SHARE = 128
_HEAD_STRIDE = 2  # every second position: the head of 49,152 rows costs as much as many layers of SmolLM2-135M


def sample(chunks: IntArray) -> IntArray:
    """A few hundred of the calibration tokens, from chunks spread over all of them."""
    count = min(_CHUNKS, len(chunks))
    length = min(max(_LENGTHS[0], chunks.size // _SHARE), _LENGTHS[1], chunks.shape[1])
    return chunks[np.linspace(0, len(chunks) - 1, count).astype(int), :length]


@dataclass(frozen=True)
class Carried:
    """Which streams are joined.

    A joined KL is less sure: with 12 streams, KLs of single matrices of SmolLM2 differed by a third from those of
    separate runs, their sum by 2 %, and budgets were spent worse. So streams are joined only where a model has more of
    them than a layer can well carry; up to about 30 layers none is.

    Attributes:
        most: older streams that a layer carries.
        young: layers that a stream goes through before it may be joined.
        last: layers before the end where none is joined: there, how far a stream moved says least.
    """

    most: int = 128
    young: int = 3
    last: int = 4


@dataclass(frozen=True)
class Stream:
    """The text with some matrices replaced.

    Attributes:
        states: what crosses into the next layer.
        shares: by weight name, of the KL that the stream will have in the end.
        since: the layer that it began in, the last one if several began it.
    """

    states: Arrays
    shares: dict[str, float]
    since: int


class Sensitivity:
    """The float model on a few chunks, one layer in memory at a time.

    Args:
        bundle: float weights.
        chunks: `[chunks, sequence]`, a few hundred token ids in all; run as one batch.
        kept: file for the streams, from which a run that was killed goes on.
        fingerprint: of the plan that the file belongs to.
        carried: how many streams a layer carries.
    """

    def __init__(
        self,
        bundle: Bundle,
        chunks: IntArray,
        kept: Path | None = None,
        fingerprint: str = "",
        carried: Carried = Carried(),
    ) -> None:
        self._graph = prefill_graph(bundle)
        self._cut = find_cut(self._graph)
        self._bundle = bundle
        self._chunks = chunks
        self._kept = kept
        self._fingerprint = fingerprint
        self._carried = carried
        self.layers = len(self._cut.borders) + 1
        self.done = 0
        self._text: Arrays = {}
        self._streams: list[Stream] = []
        self._resume()

    def weights_of(self, layer: int) -> set[str]:
        """Names of the initializers that a layer reads."""
        return set(body(self._graph, self._cut, layer, layer + 1).graph.initializers)

    @property
    def head_weights(self) -> set[str]:
        """Names of the initializers that the head reads."""
        return set(head(self._graph, self._cut).graph.initializers)

    def advance(self, replaced: Replaced) -> None:
        """Run the next layer, and begin a stream for each of its matrices in `replaced`."""
        model = body(self._graph, self._cut, self.done, self.done + 1)
        segment = Segment(model, self._bundle.folder, prepacked=False)
        begun = [self._begun(model, name, array) for name, array in replaced.items()]
        for number, stream in enumerate(self._streams):  # one after the other: all of them twice take gigabytes
            self._streams[number] = replace(stream, states=self._run(segment, stream.states))
        self._text = self._run(segment, self._text)
        self.done += 1
        self._streams = self._joined(self._streams + begun)
        self._keep()

    def _begun(self, model: ir.Model, name: str, array: npt.NDArray[np.float32]) -> Stream:
        segment = Segment(model, self._bundle.folder, {name: array}, prepacked=False)
        return Stream(self._run(segment, self._text), {name: 1.0}, self.done)

    def finish(self) -> dict[str, float]:
        """Mean KL divergence in nats for each matrix that was replaced; the last layer must have run."""
        head_segment = self._open_head({})
        reference = self._log_probabilities(self._text, head_segment)
        found: dict[str, float] = {}
        for stream in self._streams:
            kl = _divergence(reference, self._log_probabilities(stream.states, head_segment))
            found |= {name: share * kl for name, share in stream.shares.items()}
        return found

    def kl(self, replaced: Replaced) -> float:
        """Mean KL divergence in nats when all initializers in `replaced` take these values: a run of its own."""
        ours, theirs = self._through(replaced), self._through({})
        reference = self._log_probabilities(theirs, self._open_head({}))
        return _divergence(reference, self._log_probabilities(ours, self._open_head(replaced)))

    def _through(self, replaced: Replaced) -> Arrays:
        states: Arrays = {}
        ended = self.done == self.layers
        if ended and not any(self.weights_of(layer) & replaced.keys() for layer in range(self.layers)):
            return self._text
        for layer in range(self.layers):
            model = body(self._graph, self._cut, layer, layer + 1)
            states = self._run(Segment(model, self._bundle.folder, _used(model, replaced), prepacked=False), states)
        return states

    def _open_head(self, replaced: Replaced) -> Segment:
        model = with_log_softmax(head(self._graph, self._cut))
        return Segment(model, self._bundle.folder, _used(model, replaced), prepacked=False)

    def _run(self, segment: Segment, states: Arrays) -> Arrays:
        return segment(empty_cache_feeds(self._bundle, self._chunks, segment.inputs) | states)

    def _log_probabilities(self, states: Arrays, segment: Segment) -> Floats:
        hidden = states[str(self._cut.hidden.name)]
        rows = np.ascontiguousarray(hidden.reshape(-1, hidden.shape[-1])[::_HEAD_STRIDE])
        (values,) = segment({str(self._cut.head_input.name): rows}).values()
        return values

    def _joined(self, streams: list[Stream]) -> list[Stream]:
        """At most as many as are to be carried, beside those that are too young or too near the end to be joined."""
        old = [stream for stream in streams if stream.since + self._carried.young <= self.done]
        young = streams[len(old) :]
        if self.layers - self.done < self._carried.last:
            return streams
        signs = np.random.default_rng(self.done)
        moved = [_moved(stream.states, self._text) for stream in old]
        while len(old) > self._carried.most:
            first, second = sorted(np.argsort(moved, kind="stable")[:2])
            sign = signs.choice(np.array([-1, 1], np.float32), len(self._chunks))
            old[first] = self._sum(old[first], old.pop(second), sign, moved[first], moved[second])
            moved[first] += moved.pop(second)
        return old + young

    def _sum(self, one: Stream, other: Stream, sign: Floats, moved: float, other_moved: float) -> Stream:
        part = moved / total if (total := moved + other_moved) else 0.5
        shares = {name: share * part for name, share in one.shares.items()}
        shares |= {name: share * (1 - part) for name, share in other.shares.items()}
        return Stream(_added(self._text, one.states, other.states, sign), shares, max(one.since, other.since))

    def _keep(self) -> None:
        if self._kept is None:
            return
        arrays = dict(self._arrays())
        streams = [[stream.shares, stream.since] for stream in self._streams]
        told = {"plan": self._fingerprint, "done": self.done, "names": list(self._text), "streams": streams}
        temporary = self._kept.with_suffix(".new")
        with temporary.open("wb") as file:
            np.savez(file, told=np.array(json.dumps(told)), **arrays)  # type: ignore[arg-type]  # names are ours
        temporary.replace(self._kept)

    def _arrays(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        for number, states in enumerate([self._text, *(stream.states for stream in self._streams)]):
            for place, array in enumerate(states.values()):
                yield f"{number}.{place}", array

    def _resume(self) -> None:
        if self._kept is None or not self._kept.is_file():
            return
        with np.load(self._kept, allow_pickle=False) as arrays:
            told = json.loads(str(arrays["told"]))
            if told["plan"] != self._fingerprint:
                return
            states = [
                {name: arrays[f"{number}.{place}"] for place, name in enumerate(told["names"])}
                for number in range(1 + len(told["streams"]))
            ]
        self.done, self._text = told["done"], states[0]
        self._streams = [Stream(s, *rest) for s, rest in zip(states[1:], told["streams"], strict=True)]


def _divergence(reference: Floats, ours: Floats) -> float:
    gap = np.subtract(reference, ours, out=ours)
    return float(np.einsum("nv,nv->n", np.exp(reference), gap).mean())


def _used(model: ir.Model, replaced: Replaced) -> dict[str, npt.NDArray[np.float32]]:
    return {name: array for name, array in replaced.items() if name in model.graph.initializers}


def _moved(states: Arrays, text: Arrays) -> float:
    """How far a stream is from the text: of each token ‖δ‖² / ‖h‖², what the next norm makes of the difference."""
    hidden, moved = _residual(text), _residual(states)
    return float((np.square(moved - hidden).sum(-1) / np.maximum(np.square(hidden).sum(-1), 1e-30)).mean())


def _residual(states: Arrays) -> Floats:
    """The sum of what crosses as `[chunks, sequence, H]`: a layer may leave its last addition to the next one."""
    parts = [array for array in states.values() if array.ndim == 3 and array.dtype.kind == "f"]
    same = [array for array in parts if array.shape == parts[0].shape]
    total: Floats = np.sum([array.astype(np.float32) for array in same], axis=0)
    return total


def _added(text: Arrays, one: Arrays, other: Arrays, sign: Floats) -> Arrays:
    """The text, the difference of one stream, and plus or minus that of another."""
    added = {}
    for name, base in text.items():
        if base.dtype.kind != "f" or base.shape[:1] != sign.shape:
            added[name] = base
            continue
        factor = sign.reshape(-1, *[1] * (base.ndim - 1)).astype(base.dtype)
        added[name] = one[name] + factor * (other[name] - base)
    return added
