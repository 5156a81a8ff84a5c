"""Steps on ONNX Runtime: prefill a chunk of one slot, or decode one token for many, in place on one cache."""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..adapters.fitting import FittedAdapter
from ..bundle.bundle import Bundle
from ..bundle.kv_layout import STATE_COPIES
from ..cache.host import Array
from ..cache.recurrent import RecurrentStateCache
from .batch_invariance import invariant_splits
from .binding import BindingKey, FloatArray, IntArray
from .graph import BoundStep, GraphSession, Interruptible
from .memory import allocate, closing_on_error, open_device, zeros_of
from .providers import ProviderName
from .runner_protocol import MAX_SCORED
from .steps import BoundSteps


class OnnxExecutor:
    """ModelRunner over a bundle's graphs: keys and values are updated in place, states from one place to another.

    Args:
        bundle: the opened bundle.
        provider: where it runs.
        slots: slots of the cache.
        context: most tokens of one slot; None is the model's context length.
        threads: threads inside one step.
        graph: the prefill graph over weights that were prepared for this processor, in place of the bundle's.
        profile: beginning of the name of a file for ONNX Runtime's profile; see `end_profile`.
        kv_memory: bytes for keys, values and states on a GPU; None is a share of what is free there.
        two_sessions: load decode.onnx too, instead of running decode steps on prefill.onnx. Measured on SmolLM2,
            interleaved: the same logits bit for bit; in fp32 the same speed within noise (batch 1 46.6 against 51.0 ms,
            batch 8 68.8 against 69.0 ms) and 1,304 MB resident instead of 685; in int4 4 to 5 % more tokens per second
            at 1, 4 and 8 rows. Each session packs the weights for itself, and takes as long to load as the other.
    """

    def __init__(
        self,
        bundle: Bundle,
        provider: ProviderName = "cpu",
        *,
        slots: int,
        context: int | None = None,
        threads: int | None = None,
        graph: Path | None = None,
        profile: Path | None = None,
        two_sessions: bool = False,
        kv_memory: int | None = None,
        adapters: Sequence[FittedAdapter] = (),
    ) -> None:
        manifest = bundle.manifest
        self.slots = slots
        self.vocab_size = manifest.architecture.vocab_size
        self.bytes_per_token = manifest.kv_cache.bytes_per_token
        context = min(context or manifest.architecture.context_length, manifest.architecture.context_length)
        self._query_blocks = frozenset(2 * layer.head_dim for layer in manifest.architecture.layers)
        self._windowed = any(layer.window is not None for layer in manifest.architecture.layers)
        device = open_device(provider)
        with closing_on_error(device):
            graphs, stream = manifest.graphs, None if device is None else device.stream
            prefill = GraphSession(bundle.folder, graphs.prefill, provider, threads, stream, graph, profile, adapters)
            other = graphs.decode if two_sessions else None
            decode = other and GraphSession(bundle.folder, other, provider, threads, stream, adapters=adapters)
            self._adapters = [one.adapters for one in (prefill, decode) if one and one.adapters]
            self._memory = allocate(manifest, slots, context, device, kv_memory)
            self._new_logits = functools.partial(zeros_of, self._memory.transfers, manifest)
            logits = self._new_logits(slots)
        self.memory, self.capacity = self._memory.slots, self._memory.capacity
        self.state_bytes = STATE_COPIES * manifest.state_bytes
        self.states = RecurrentStateCache(self._memory.states, slots)
        self.can_give_all_logits = True
        self.has_adapters = bool(adapters)
        self.can_batch_prefill = prefill.has_counts and not manifest.state_bytes
        self._scores: FloatArray | None = None
        self._firsts: FloatArray | None = None  # logits of prefill_batch
        self._steps = BoundSteps(prefill, decode or prefill, self._memory, logits, windowed=self._windowed)
        self._interruptible = Interruptible()

    @property
    def kv_budget(self) -> int | None:
        """Bytes that keys, values and states take at most on a GPU; None where the caller's budget decides."""
        token = self.capacity * self.bytes_per_token
        return None if self._memory.device is None else self.slots * (token + self.state_bytes)

    def end_profile(self) -> Path:
        """Stop the profile and return its file, JSON of ONNX Runtime's; only where one was asked for."""
        return Path(self._steps.prefill.session.end_profiling())

    def prefill(self, slot: int, past: int, ids: IntArray) -> FloatArray:
        """Put `ids` [n] at positions `past …` of the slot; returns the logits [vocab] after the last of them."""
        *first, last = invariant_splits(len(ids), self._query_blocks)
        start = self._prefill_pieces(slot, past, ids, first)
        logits: FloatArray = self._prefill_piece("prefill", slot, past + start, ids[start:last])[0]
        return logits

    def prefill_without_logits(self, slot: int, past: int, ids: IntArray) -> None:
        """Put `ids` [n] at positions `past …` of the slot, without computing the head for any of them."""
        self._prefill_pieces(slot, past, ids, invariant_splits(len(ids), self._query_blocks))

    def _prefill_pieces(self, slot: int, past: int, ids: IntArray, stops: Sequence[int]) -> int:
        """Run the pieces of `ids` that end at `stops`, without the head; returns the last of the ends, or 0."""
        start = 0
        for stop in stops:
            self._prefill_piece(
                "prefill_without_logits", slot, past + start, ids[start:stop], intermediate=stop < len(ids)
            )
            start = stop
        return start

    def prefill_batch(self, first: int, pasts: Sequence[int], chunks: Sequence[IntArray]) -> FloatArray:
        """Put `chunks[i]` at positions `pasts[i] …` of slot `first + i`, together; returns the logits [n, vocab]."""
        assert self.can_batch_prefill
        rows = self._adapters[0].rows if self._adapters else None
        if self._firsts is None:
            self._firsts = self._new_logits(self.slots)
        logits = self._firsts[: len(chunks)]
        ends = [invariant_splits(len(chunk), self._query_blocks)[0] for chunk in chunks]
        if max(pasts) + max(ends) > self.capacity:  # padding has no room: one by one
            ends = [0] * len(chunks)
        else:
            heads = [chunk[:end] for chunk, end in zip(chunks, ends, strict=True)]
            self._steps.reserve(max(pasts) + max(ends))
            step = BoundStep(self._steps.prefill, self._memory, BindingKey(first, len(chunks)), logits)
            step.set_chunks(np.array(pasts), heads)
            step.run(None)
            for index, (past, end) in enumerate(zip(pasts, ends, strict=True)):
                self._steps.evict_window(first + index, past, past + end)
        for index, (past, chunk, end) in enumerate(zip(pasts, chunks, ends, strict=True)):
            if end < len(chunk):
                if rows is not None:
                    self.select_adapters(rows[index : index + 1])
                logits[index] = self.prefill(first + index, past + end, chunk[end:])
        return logits

    def _prefill_piece(
        self, role: str, slot: int, past: int, ids: IntArray, *, intermediate: bool = False
    ) -> FloatArray:
        with self.states.advance(slot, [past], [len(ids)], intermediate=intermediate) as state_slots:
            step = self._steps.get(role, BindingKey(slot, 1, *state_slots), past + len(ids))
            step.set_lengths(past + len(ids))
            step.set_ids(np.ascontiguousarray(ids, np.int64)[None])
            with self._interruptible as options:
                step.run(options)
        self._steps.evict_window(slot, past, past + len(ids))
        return step.logits

    def decode(self, ids: IntArray, lengths: IntArray) -> FloatArray:
        """Put `ids[r]` at position `lengths[r]` of each slot r = 0 … n-1; returns logits [n, vocab]."""
        longest, pasts = int(lengths.max()) + 1, lengths.tolist()
        with self.states.advance(0, pasts, [1] * len(pasts)) as state_slots:
            step = self._steps.get("decode", BindingKey(0, len(ids), *state_slots), longest)
            step.set_lengths(longest, lengths)
            step.inputs["input_ids"][:, 0] = ids
            step.run(None)
        if self._windowed:
            for slot, length in enumerate(pasts):
                self._steps.evict_window(slot, length, length + 1)
        return step.logits

    def all_logits(self, slot: int, past: int, ids: IntArray) -> FloatArray:
        """Put `ids` [n] at positions `past …` of the slot; returns the logits [n, vocab] after each of them."""
        assert self.can_give_all_logits
        assert len(ids) <= MAX_SCORED
        if self._scores is None:
            self._scores = self._new_logits(MAX_SCORED)
        start = 0
        for stop in invariant_splits(len(ids), self._query_blocks):
            intermediate = stop < len(ids)
            with self.states.advance(slot, [past + start], [stop - start], intermediate=intermediate) as state_slots:
                step = self._steps.get("all_logits", BindingKey(slot, 1, *state_slots), past + stop)
                step.set_lengths(past + stop)
                step.set_ids(np.ascontiguousarray(ids[start:stop], np.int64)[None])
                step.want_all(self._scores[start:stop])
                step.run(None)
            self._steps.evict_window(slot, past + start, past + stop)
            start = stop
        return self._scores[: len(ids)]

    def select_adapters(self, rows: Sequence[int]) -> None:
        """Say which adapter each row of the next steps has, by its number from 1 on; 0: none."""
        for inputs in self._adapters:
            inputs.rows = tuple(rows)

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot over another slot."""
        self.states.copy_slot(source, target, length)
        self.memory.copy_slot(source, target, length)

    def free_slot(self, slot: int, keep: int = 0) -> None:
        """Give back the memory of the slot's tokens from `keep` on."""
        self.states.free_slot(slot, keep)
        self.memory.free_slot(slot, keep)

    def read(self, slot: int, start: int, stop: int) -> list[Array]:
        """Copies of the keys and values at positions `[start, stop)`, one array per cache tensor."""
        return self.memory.read(slot, start, stop)

    def write(self, slot: int, start: int, block: list[Array]) -> None:
        """Put back what `read` returned, at position `start`."""
        self.memory.write(slot, start, block)

    def keep_state(self, slot: int, length: int) -> bool:
        """Keep the states behind the slot's first `length` tokens; False: they are not known."""
        return self.states.keep(slot, length)

    def read_state(self, slot: int, length: int) -> list[Array]:
        """Copies of the states behind the slot's first `length` tokens."""
        return self.states.read(slot, length)

    def write_state(self, slot: int, length: int, block: list[Array]) -> None:
        """Put back what `read_state` returned, as the slot's only states, and keep them."""
        self.states.write(slot, length, block)

    def interrupt(self) -> None:
        """Make a running `prefill` raise StepInterrupted between two kernels."""
        self._interruptible.interrupt()

    def close(self) -> None:
        """Release sessions and memory; the executor cannot be used afterwards."""
        self._steps.close()
