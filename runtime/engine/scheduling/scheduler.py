"""The scheduler: decides what runs next from token counts alone, without tensors, clocks or threads.

    WAITING ──admit──► PREFILL ──join──► RUNNING ──finish──► FINISHED
       ▲                                    │
       └──────────────preempt───────────────┘          `finish` ends a sequence in any state

Running sequences fill slots 0 … n-1 without holes, so a decode step is one contiguous batch. Sequences in PREFILL use
slots from n on: one at a time, or several that are short enough for one run. These are ordered by slot and join in that
order. Slots of finished sequences stay cached until they are needed.

The scheduler changes no memory itself: each call returns a Decision, and the engine carries it out.
"""

from collections.abc import Sequence as List

from ...cache.blocks import BlockPool
from ...cache.slots import CachedSlots
from ...errors import PromptTooLongError
from ...ort.runner_protocol import MIN_CHUNK
from . import chunks
from .block_budget import MAX_PREEMPTIONS, BlockBudget
from .decision import NOTHING, Chunk, Decision, Move
from .limits import Limits
from .sequence import Sequence, Status
from .shared_prefix import SharedPrefixes
from .waiting import WaitingQueue


class Scheduler:
    """Tracks every sequence. The engine asks what to do, does it, and reports back."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting = WaitingQueue()
        self.prefilling: list[Sequence] = []
        self.running: list[Sequence] = []
        self.cached = CachedSlots(pool, whole=limits.states_every > 0)
        self.prefixes = SharedPrefixes(limits, self.cached)
        self.preemptions = 0
        self._budget = BlockBudget(pool, self.cached, optimistic=limits.optimistic)

    @property
    def idle_slots(self) -> int:
        """Slots without a running sequence, for which a prompt waits."""
        return min(len(self.waiting) + len(self.prefilling), self.limits.slots - len(self.running))

    @property
    def longest(self) -> int:
        """Most tokens of one sequence: the context length, or the size of the whole pool if that is less."""
        return min(self.limits.context, self.pool.tokens)

    # What callers ask for

    def check(self, prompt_length: int, max_tokens: int) -> None:
        """Raise PromptTooLongError for a prompt that could never run; safe to call from any thread."""
        if prompt_length + min(1, max_tokens) > self.longest:
            what = "the context" if self.longest == self.limits.context else "all of the KV memory (--kv-memory)"
            raise PromptTooLongError(
                f"The prompt has {prompt_length} tokens and {what} holds {self.longest}, of which the answer needs at "
                "least one. Shorten the prompt."
            )

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence that passed `check`."""
        assert sequence.max_len <= self.longest
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence, reason: str) -> Decision:
        """End a sequence in whatever state it is; a running one keeps its slot until `retire`."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
            self._vacate(sequence)
        return self._decided()

    # One step of the engine, in this order

    def retire(self) -> Decision:
        """Take finished sequences out of the batch; the last running slots move into the holes."""
        moves: list[Move] = []
        for slot in range(len(self.running) - 1, -1, -1):
            if self.running[slot].status is Status.FINISHED:
                moves += self._take_out(self.running[slot])
        return self._decided(moves)

    def admit(self, size: int = 0) -> Decision:
        """Admit the next waiting sequence if a slot and memory are free; its prefix may be copied from another slot.

        The sequence is then the last of `prefilling`. Beside others it is admitted only if one run of `size` tokens,
        padding included, can compute all of them.
        """
        slot = self.prefilling[-1].slot + 1 if self.prefilling else len(self.running)
        crowded = self.prefilling and not chunks.fit(self.prefilling, size, MIN_CHUNK)
        if not self.waiting or slot >= self.limits.slots or crowded:
            return NOTHING
        sequence = self.waiting.first
        source, shared = self.prefixes.longest(sequence, self.running)
        if self.prefilling and not chunks.fits_beside(sequence, shared, self.prefilling, size):
            return NOTHING
        in_place = source == slot if self.prefilling else self.cached.worth_taking(source, shared, slot)
        if in_place:
            self.cached.drop(source)
        if not self._budget.pay(sequence, self._budget.price(sequence), keep=source):
            self.cached.released += [source] if in_place else []
            return self._decided()
        self.waiting.remove(sequence)
        if not in_place and source >= len(self.running) and source not in self.cached:
            source = -1  # it had to be given up to pay
        return self._start(sequence, slot, source, shared, in_place)

    def grow(self) -> Decision:
        """Reserve memory for the next token of every running sequence, preempting the newest ones if it is short."""
        moves: list[Move] = []
        for sequence in list(self.running):
            if sequence.num_computed < (sequence.blocks - self.pool.row_blocks) * self.pool.block_tokens:
                continue  # most steps: there is room in its last block
            while sequence.status is Status.RUNNING and not self.pay_ahead(sequence, 0):
                moves += self._preempt()
        return self._decided(moves)

    def pay_ahead(self, sequence: Sequence, tokens: int) -> bool:
        """Reserve blocks for `tokens` tokens after the next one. Evicts cached slots if it must; preempts nobody.

        Returns:
            Whether the blocks are reserved. If not, nothing has changed.
        """
        return self._budget.pay(sequence, self.pool.blocks(sequence.num_computed + 1 + tokens))

    def next_chunks(self, size: int) -> list[Chunk]:
        """The chunks of the next prefill run: the rest of several prompts at consecutive slots, or one chunk."""
        return chunks.next_chunks(self.prefilling, size)

    # What the engine reports

    def prefilled(self, chunk: Chunk) -> None:
        """A chunk is in the cache."""
        chunk.sequence.num_computed = chunk.sequence.num_prefilled = chunk.stop

    def join(self, sequence: Sequence) -> Decision:
        """Move the first sequence, whose prefill is complete, to the end of the running batch."""
        assert sequence is self.prefilling[0]
        del self.prefilling[0]
        moves = []
        slot = len(self.running)
        if sequence.slot != slot:
            self.cached.drop(slot)
            moves = [Move(sequence.slot, slot, sequence.num_computed, sequence)]
            self.cached.released.append(sequence.slot)
        sequence.slot = slot
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        return self._decided(moves)

    def found(self, sequence: Sequence, length: int) -> None:
        """Record that the first `length` tokens of a sequence in PREFILL are in its slot already."""
        sequence.num_computed = sequence.num_prefilled = sequence.kept = length
        sequence.num_cached = min(length, sequence.prompt_length)

    # Inside

    def _decided(self, moves: List[Move] = (), admitted: Sequence | None = None) -> Decision:
        """A decision that also frees every slot released since the last one."""
        if not self.cached.released:
            return Decision(tuple(moves), (), admitted) if moves or admitted else NOTHING
        slots, self.cached.released = set(self.cached.released), []
        live = {s.slot: s.num_computed for s in (*self.running, *self.prefilling)}
        released = ((slot, live.get(slot, 0)) for slot in sorted(slots) if slot not in self.cached)
        return Decision(tuple(moves), tuple(released), admitted)

    def _start(self, sequence: Sequence, slot: int, source: int, shared: int, in_place: bool) -> Decision:
        sequence.status = Status.PREFILL
        self.prefilling.append(sequence)
        sequence.slot = source if in_place else slot
        self.found(sequence, shared if source >= 0 else 0)
        sequence.checkpoint_positions = self.prefixes.checkpoints(len(sequence.tokens))
        self.cached.drop(sequence.slot)
        self.cached.released.append(sequence.slot)  # whatever lies beyond `num_computed` there
        moves = [] if in_place or source < 0 else [Move(source, sequence.slot, shared, sequence)]
        return self._decided(moves, sequence)

    def _take_out(self, sequence: Sequence) -> list[Move]:
        """Remove one sequence from the batch; the last one moves into its slot."""
        last = self.running.pop()
        if last is sequence:
            self._vacate(sequence)
            return []
        move = Move(last.slot, sequence.slot, last.num_computed, last)
        self.cached.released.append(last.slot)
        self.running[sequence.slot] = last
        last.slot = sequence.slot
        self._budget.give_back(sequence)
        return [move]

    def _vacate(self, sequence: Sequence) -> None:
        """Leave a slot: it stays cached unless its contents are too short to reuse or the sequence failed."""
        reusable = self.prefixes.reusable(sequence)
        if reusable >= MIN_CHUNK and sequence.status is Status.FINISHED and sequence.finish_reason != "error":
            needed = self.pool.blocks(sequence.num_computed)
            self.cached.keep(sequence.slot, sequence.tokens[:reusable], sequence.blocks, needed, sequence.adapter)
            sequence.blocks = 0
        else:
            self.cached.released.append(sequence.slot)
        self._budget.give_back(sequence)

    def _preempt(self) -> list[Move]:
        """Preempt the newest sequence: it returns to the front of the queue, keeps its tokens, and is recomputed."""
        candidates = (s for s in self.running if s.preemptions < MAX_PREEMPTIONS and s.status is Status.RUNNING)
        victim = self.prefilling[-1] if self.prefilling else max(candidates, key=lambda s: s.id)
        victim.preemptions += 1
        self.preemptions += 1
        moves: list[Move] = []
        if victim.status is Status.PREFILL:
            self.prefilling.remove(victim)
            self._vacate(victim)
        else:
            moves = self._take_out(victim)
        victim.num_computed = victim.num_prefilled = victim.kept = 0
        victim.status = Status.WAITING
        self.waiting.put_back(victim)
        return moves
