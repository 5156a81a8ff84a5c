"""Steps on ONNX Runtime: prefill a chunk of one row, or decode one token for many, in place on one cache."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .binding import Binding, FloatArray, IntArray
from .bundle import Bundle
from .errors import BundleError, ExecutionError
from .kv_cache import Array, CacheTensor, GrowingRows, PagedRows, Rows, pages_supported
from .manifest import Graph, Manifest
from .ports import cache_pairs
from .session import ProviderName, check_session, onnxruntime, open_session, require_query_seqlens
from .step_executor import MAX_REWIND, MAX_SCORED, StepInterrupted


class OnnxExecutor:
    """StepExecutor over a bundle's graphs, every cache tensor bound in place (present = past).

    Args:
        bundle: the opened bundle.
        provider: where it runs.
        rows: rows of the cache.
        context: most tokens of one row; None is the model's context length.
        threads: threads inside one step.
        two_sessions: load decode.onnx too, instead of running decode steps on prefill.onnx. Measured on SmolLM2 fp32,
            interleaved: the same speed within noise (batch 1 46.6 against 51.0 ms, batch 8 68.8 against 69.0 ms), the
            same logits bit for bit, and 1,304 MB resident instead of 685: each session packs the weights for itself.
    """

    def __init__(
        self,
        bundle: Bundle,
        provider: ProviderName = "cpu",
        *,
        rows: int,
        context: int | None = None,
        threads: int | None = None,
        two_sessions: bool = False,
    ) -> None:
        manifest = bundle.manifest
        _refuse_states(bundle)
        self.rows = rows
        self.vocab_size = manifest.architecture.vocab_size
        self.bytes_per_token = manifest.kv_cache.bytes_per_token
        self.capacity = min(context or manifest.architecture.context_length, manifest.architecture.context_length)
        graphs = manifest.graphs
        self._prefill = _LoadedGraph(bundle.folder, graphs.prefill, provider, threads)
        self._decode = _LoadedGraph(bundle.folder, graphs.decode, provider, threads) if two_sessions else self._prefill
        tensors = cache_tensors(manifest)
        self._query_blocks = frozenset(2 * layer.head_dim for layer in manifest.architecture.layers)
        self._windowed = any(tensor.window is not None for tensor in tensors)
        self.memory = _allocate(tensors, rows, self.capacity, provider)
        self._logits = np.zeros((rows, self.vocab_size), _logits_type(graphs.prefill))
        self.can_score = True
        self.can_batch_prefill = self._prefill.has_counts
        self._scores: FloatArray | None = None
        self._firsts: FloatArray | None = None  # logits of prefill_batch
        self._bindings: dict[tuple[str, int], _Step] = {}
        self._generation = self.memory.generation
        self._interruptible = _Interruptible()

    def prefill(self, row: int, past: int, ids: IntArray) -> FloatArray:
        """Put `ids` [n] at positions `past …` of the row; returns the logits [vocab] after the last of them."""
        *first, last = uniform_pieces(len(ids), self._query_blocks)
        start = self._extend_pieces(row, past, ids, first)
        logits: FloatArray = self._prefill_piece("prefill", row, past + start, ids[start:last])[0]
        return logits

    def extend(self, row: int, past: int, ids: IntArray) -> None:
        """Put `ids` [n] at positions `past …` of the row, without computing the head for any of them."""
        self._extend_pieces(row, past, ids, uniform_pieces(len(ids), self._query_blocks))

    def _extend_pieces(self, row: int, past: int, ids: IntArray, stops: Sequence[int]) -> int:
        """Run the pieces of `ids` that end at `stops`, without the head; returns the last of the ends, or 0."""
        start = 0
        for stop in stops:
            self._prefill_piece("extend", row, past + start, ids[start:stop])
            start = stop
        return start

    def prefill_batch(self, first: int, pasts: Sequence[int], chunks: Sequence[IntArray]) -> FloatArray:
        """Put `chunks[i]` at positions `pasts[i] …` of row `first + i`, together; returns the logits [n, vocab]."""
        assert self.can_batch_prefill
        if self._firsts is None:
            self._firsts = np.zeros_like(self._logits)
        logits = self._firsts[: len(chunks)]
        ends = [uniform_pieces(len(chunk), self._query_blocks)[0] for chunk in chunks]
        if max(pasts) + max(ends) > self.capacity:  # padding has no room: one by one
            ends = [0] * len(chunks)
        else:
            self._prefill_heads(first, pasts, [chunk[:end] for chunk, end in zip(chunks, ends, strict=True)], logits)
        for index, (past, chunk, end) in enumerate(zip(pasts, chunks, ends, strict=True)):
            if end < len(chunk):
                logits[index] = self.prefill(first + index, past + end, chunk[end:])
        return logits

    def _prefill_heads(self, first: int, pasts: Sequence[int], chunks: Sequence[IntArray], logits: FloatArray) -> None:
        self._reserve(max(pasts) + max(map(len, chunks)))
        step = _Step(self._prefill, self.memory, first, len(chunks), logits)
        step.set_chunks(np.array(pasts), chunks)
        step.run(None)
        for index, (past, chunk) in enumerate(zip(pasts, chunks, strict=True)):
            self._forget(first + index, past, past + len(chunk))

    def _prefill_piece(self, role: str, row: int, past: int, ids: IntArray) -> FloatArray:
        step = self._step(role, row, past + len(ids))
        step.set_lengths(past + len(ids))
        step.set_ids(np.ascontiguousarray(ids, np.int64)[None])
        with self._interruptible as options:
            step.run(options)
        self._forget(row, past, past + len(ids))
        return step.logits

    def decode(self, ids: IntArray, lengths: IntArray) -> FloatArray:
        """Put `ids[r]` at position `lengths[r]` of each row r = 0 … n-1; returns logits [n, vocab]."""
        longest = int(lengths.max()) + 1
        step = self._step("decode", len(ids), longest)
        step.set_lengths(longest, lengths)
        step.inputs["input_ids"][:, 0] = ids
        step.run(None)
        if self._windowed:
            for row, length in enumerate(lengths.tolist()):
                self._forget(row, length, length + 1)
        return step.logits

    def score(self, row: int, past: int, ids: IntArray) -> FloatArray:
        """Put `ids` [n] at positions `past …` of the row; returns the logits [n, vocab] after each of them."""
        assert self.can_score
        assert len(ids) <= MAX_SCORED
        if self._scores is None:
            self._scores = np.zeros((MAX_SCORED, self.vocab_size), self._logits.dtype)
        start = 0
        for stop in uniform_pieces(len(ids), self._query_blocks):
            step = self._step("score", row, past + stop)
            step.set_lengths(past + stop)
            step.set_ids(np.ascontiguousarray(ids[start:stop], np.int64)[None])
            step.want_all(self._scores[start:stop])
            step.run(None)
            self._forget(row, past + start, past + stop)
            start = stop
        return self._scores[: len(ids)]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one row over another row."""
        self.memory.move(source, target, length)

    def release(self, row: int, keep: int = 0) -> None:
        """Give back the memory of the row's tokens from `keep` on."""
        self.memory.release(row, keep)

    def read(self, row: int, start: int, stop: int) -> list[Array]:
        """Copies of the keys and values at positions `[start, stop)`, one array per cache tensor."""
        return self.memory.read(row, start, stop)

    def write(self, row: int, start: int, block: list[Array]) -> None:
        """Put back what `read` returned, at position `start`."""
        self.memory.write(row, start, block)

    def interrupt(self) -> None:
        """Make a running `prefill` raise StepInterrupted between two kernels."""
        self._interruptible.interrupt()

    def close(self) -> None:
        """Release sessions and memory; the executor cannot be used afterwards."""
        self._bindings.clear()
        del self._prefill, self._decode
        self.memory.close()

    def _forget(self, row: int, before: int, after: int) -> None:
        if self._windowed:  # what a rejected draft may still need is kept
            self.memory.forget(row, max(0, before - MAX_REWIND), max(0, after - MAX_REWIND))

    def _step(self, role: str, number: int, length: int) -> "_Step":
        """The bound step of one prefill row, or of one decode batch size, able to hold `length` tokens."""
        self._reserve(length)
        key = (role, number)
        if key not in self._bindings:
            loaded, first, count = (self._decode, 0, number) if role == "decode" else (self._prefill, number, 1)
            self._bindings[key] = _Step(loaded, self.memory, first, count, self._logits[:count])
            if role == "extend":
                self._bindings[key].want_all(self._logits[:0])
        return self._bindings[key]

    def _reserve(self, length: int) -> None:
        if length > self.capacity:
            raise ExecutionError(f"A step would need {length} tokens in one row, and a row holds {self.capacity}.")
        self.memory.reserve(length)
        if self._generation != self.memory.generation:  # the cache moved: every binding points into freed memory
            self._bindings.clear()
            self._generation = self.memory.generation


class _LoadedGraph:
    """A session and its ports."""

    def __init__(self, folder: Path, graph: Graph, provider: ProviderName, threads: int | None) -> None:
        self.graph = graph
        roles = {port.role for port in graph.inputs}
        self.has_index, self.has_counts = "logits_index" in roles, "query_seqlens" in roles
        if self.has_counts:
            require_query_seqlens(folder)
        self.session = open_session(folder / graph.file, provider, threads)
        check_session(self.session, graph)


class _Step:
    """A binding with its small inputs. On CPU they are bound once and only overwritten between two runs."""

    def __init__(self, loaded: _LoadedGraph, memory: Rows, first: int, count: int, logits: FloatArray) -> None:
        self.logits = logits
        self._binding = Binding(loaded.session, loaded.graph, memory, first, count, logits)
        self.inputs: dict[str, IntArray] = {
            "input_ids": np.zeros((count, 1), np.int64),
            "seqlens_k": np.zeros(count, np.int32),
            "total_sequence_length": np.zeros((), np.int32),
        }
        if loaded.has_index:
            self.inputs["logits_index"] = np.stack([np.arange(count), np.zeros(count, np.int64)], axis=1)
        if loaded.has_counts:
            self.inputs["query_seqlens"] = np.ones(count, np.int32)
        for role, array in self.inputs.items():
            self._binding.set_input(role, array)

    def set_lengths(self, longest: int, lengths: IntArray | None = None) -> None:
        """Tell the attention that rows hold `lengths` tokens before this step, `longest` the most after it."""
        self.inputs["seqlens_k"][:] = longest - 1 if lengths is None else lengths
        self.inputs["total_sequence_length"][...] = longest

    def set_ids(self, ids: IntArray) -> None:
        """Bind `ids` [1, n] and ask for the logits after the last of them."""
        self.inputs["input_ids"] = ids
        self._binding.set_input("input_ids", ids)
        self.inputs["logits_index"][:1, 1] = ids.shape[1] - 1
        if "query_seqlens" in self.inputs:
            self.inputs["query_seqlens"][:] = ids.shape[1]

    def set_chunks(self, pasts: IntArray, chunks: Sequence[IntArray]) -> None:
        """Bind a chunk for each row, behind its past, padded on the right; ask for the logits after their last ids."""
        counts = np.array([len(chunk) for chunk in chunks])
        ids = np.zeros((len(chunks), counts.max()), np.int64)
        for row, chunk in zip(ids, chunks, strict=True):
            row[: len(chunk)] = chunk
        self.inputs["input_ids"] = ids
        self._binding.set_input("input_ids", ids)
        self.inputs["logits_index"][:, 1] = counts - 1
        self.inputs["query_seqlens"][:] = counts
        self.inputs["seqlens_k"][:] = pasts + counts - 1
        self.inputs["total_sequence_length"][...] = max((pasts + counts).max(), ids.shape[1])

    def want_all(self, logits: FloatArray) -> None:
        """Ask for the logits after each of the ids, into `logits` [n, vocab]."""
        places = np.arange(len(logits))
        self.inputs["logits_index"] = np.stack([np.zeros_like(places), places], axis=1)
        self._binding.set_input("logits_index", self.inputs["logits_index"])
        self._binding.set_logits(logits)
        self.logits = logits

    def run(self, options: Any) -> None:
        """Run what is bound."""
        if not self._binding.on_host:
            for role, array in self.inputs.items():
                self._binding.set_input(role, array)
        self._binding.run(options)


class _Interruptible:
    """`with` this around a run; `interrupt` from another thread then stops exactly that run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._options: Any = None

    def __enter__(self) -> Any:
        with self._lock:
            self._options = onnxruntime().RunOptions()
            return self._options

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self._lock:
            options, self._options = self._options, None
        if isinstance(error, ExecutionError) and options.terminate:
            raise StepInterrupted from error

    def interrupt(self) -> None:
        with self._lock:
            if self._options is not None:
                self._options.terminate = True


def uniform_pieces(length: int, blocks: frozenset[int]) -> list[int]:
    """Ends of the pieces in which a chunk of `length` tokens is run: itself, or itself less a short tail, and the tail.

    GroupQueryAttention on CPU takes query rows in blocks of 2·head_dim, and a block of a single row takes another
    kernel, whose last bits differ. Without such blocks, every way to cut a prompt into chunks gives the same bits.
    """

    def lonely(rows: int) -> bool:
        return any(rows % block == 1 for block in blocks)

    tails = range(2, length - 1)
    if not lonely(length) or not tails:
        return [length]
    tail = next((tail for tail in tails if not lonely(tail) and not lonely(length - tail)), 0)
    return [length - tail, length] if tail else [length]


def cache_tensors(manifest: Manifest) -> list[CacheTensor]:
    """The cache tensors of a bundle in the order of `cache_pairs`: all keys, then all values."""
    windows = [layer.window for layer in manifest.architecture.layers] * 2
    pairs = list(cache_pairs(manifest.graphs.prefill.inputs, manifest.graphs.prefill.outputs))
    return [
        CacheTensor(past.name, int(past.shape[1]), int(past.shape[3]), np.dtype(past.dtype), window)
        for (past, _), window in zip(pairs, windows, strict=True)
    ]


def _allocate(tensors: list[CacheTensor], rows: int, capacity: int, provider: ProviderName) -> Rows:
    if provider == "cuda":
        from .cuda_rows import CudaRows

        return CudaRows(tensors, rows, capacity)
    return PagedRows(tensors, rows, capacity) if pages_supported() else GrowingRows(tensors, rows, capacity)


def _refuse_states(bundle: Bundle) -> None:
    if any(port.role == "past_state" for port in bundle.manifest.graphs.prefill.inputs):
        kind = bundle.manifest.architecture.model_type
        raise BundleError(
            f"{bundle.folder} keeps states beside its KV cache: {kind} has layers that do not attend. "
            f"This engine does not carry them yet; FORMAT.md says how to run the graphs without it."
        )


def _logits_type(graph: Graph) -> np.dtype[Any]:
    return np.dtype(next(port.dtype for port in graph.outputs if port.role == "logits"))
