"""Who runs next: pure Python over token counts, without tensors, clocks or threads.

    WAITING ──admit──► PREFILL ──join──► RUNNING ──finish──► FINISHED
       ▲                                    │
       └──────────────preempt───────────────┘          `finish` ends a sequence in any state

Running sequences fill slots 0 … n-1 of the cache without holes, so one decode step is one contiguous batch. In PREFILL,
at a slot at or beyond n, is one sequence at a time, or several that are short enough to be computed in one run: these
stand in the order of their slots, and join in it. Slots of finished sequences stay warm until needed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ..cache.blocks import BlockPool
from ..cache.slots import CachedSlots
from ..errors import PromptTooLongError
from .request import Sequence, Status, common_prefix

MIN_CHUNK = 2  # a chunk of one token takes the decode kernel, whose last bit may differ
MAX_PREEMPTIONS = 2


@dataclass(frozen=True)
class Move:
    """Copy the first `length` tokens of slot `source` over slot `target`."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Chunk:
    """Compute keys and values of `sequence.tokens[start:stop]` in its slot."""

    sequence: Sequence
    start: int
    stop: int


@dataclass(frozen=True)
class Limits:
    """What the scheduler may use.

    Args:
        slots: sequences that decode together.
        context: most tokens of one sequence.
        window: shortest attention window of any layer, or None; longer slots have lost what lies before it.
        optimistic: admit before the whole answer is sure to fit, and preempt when it does not.
        reuse_generated: let later prompts reuse keys and values that decode computed, not only those of prefill.
        states_every: where layers keep states, which cannot go back: they are kept at multiples of so many tokens, and
            a slot is continued only there. 0: there are none, and any beginning of a slot can be reused.
    """

    slots: int
    context: int
    window: int | None = None
    optimistic: bool = False
    reuse_generated: bool = False
    states_every: int = 0


class Scheduler:
    """Keeps every sequence's state. The engine asks it what to do, does it, and reports back."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.running: list[Sequence] = []
        self.warm = CachedSlots(pool, whole=limits.states_every > 0)
        self.preemptions = 0

    @property
    def idle_slots(self) -> int:
        """Slots that could decode if prompts were computed faster."""
        return min(len(self.waiting) + len(self.prefilling), self.limits.slots - len(self.running))

    @property
    def idle(self) -> bool:
        """Nothing waits, prefills or runs."""
        return not (self.waiting or self.prefilling or self.running)

    @property
    def longest(self) -> int:
        """Most tokens that one sequence can have: the context, or what the whole pool holds."""
        return min(self.limits.context, self.pool.tokens)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.running
        yield from self.prefilling
        yield from self.waiting

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

    def finish(self, sequence: Sequence, reason: str) -> None:
        """End a sequence in whatever state it is; a running one keeps its slot until `retire`."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
            self._vacate(sequence)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed."""
        return [s for s in self if s.deadline is not None and s.deadline <= now and s.status is not Status.FINISHED]

    # One turn of the engine's loop, in this order

    def retire(self) -> list[Move]:
        """Take finished sequences out of the batch; the last running slots move into the holes."""
        moves = []
        for slot in range(len(self.running) - 1, -1, -1):
            if self.running[slot].status is Status.FINISHED:
                moves += self._take_out(self.running[slot])
        return moves

    def admit(self, size: int = 0) -> Move | None:
        """Start the prefill of the next waiting sequence if slots and memory allow; it may begin with a copied prefix.

        It is then the last of `prefilling`, with `length` tokens in its slot once the returned copy is made. Beside
        others it starts only if all of them can be computed in one run of `size` tokens, padding included.
        """
        slot = self.prefilling[-1].slot + 1 if self.prefilling else len(self.running)
        crowded = self.prefilling and not _fit(self.prefilling, size, MIN_CHUNK)
        if not self.waiting or slot >= self.limits.slots or crowded:
            return None
        sequence = self.waiting[0]
        source, shared = self._reusable(sequence)
        if self.prefilling and not self._fits_beside(sequence, shared, size):
            return None
        in_place = source == slot if self.prefilling else self.warm.worth_taking(source, shared, slot)
        if in_place:
            self.warm.drop(source)
        if not self._pay(sequence, self._price(sequence), keep=source):
            self.warm.released += [source] if in_place else []
            return None
        self.waiting.popleft()
        if not in_place and source >= len(self.running) and source not in self.warm:
            source = -1  # it had to be given up to pay
        return self._start(sequence, slot, source, shared, in_place)

    def grow(self) -> list[Move]:
        """Pay for the next token of every running sequence, preempting the newest ones where memory is short."""
        moves: list[Move] = []
        for sequence in list(self.running):
            while sequence.status is Status.RUNNING and not self._pay(
                sequence, self.pool.blocks(sequence.num_computed + 1)
            ):
                moves += self._preempt()
        return moves

    def pay_ahead(self, sequence: Sequence, tokens: int) -> bool:
        """Pay for `tokens` tokens beyond the next one, if that takes nothing from anybody; says whether it did."""
        return self._pay(sequence, self.pool.blocks(sequence.num_computed + 1 + tokens))

    def next_chunks(self, size: int) -> list[Chunk]:
        """What to prefill in the next run: all that is left of several sequences at consecutive slots, or one chunk."""
        together: list[Sequence] = []
        for sequence in self.prefilling:
            consecutive = sequence.slot == self.prefilling[0].slot + len(together)
            if not (consecutive and _fit([*together, sequence], size)):
                break
            together.append(sequence)
        if len(together) > 1:
            return [Chunk(sequence, sequence.num_computed, len(sequence.tokens)) for sequence in together]
        chunk = self.next_chunk(size)
        return [chunk] if chunk else []

    def next_chunk(self, size: int) -> Chunk | None:
        """The first sequence's next chunk of about `size` tokens; never one that has, or leaves, a single token."""
        if not self.prefilling:
            return None
        sequence = self.prefilling[0]
        stops = (stop for stop in sequence.checkpoint_positions if stop > sequence.num_computed)
        left = min(stops, default=len(sequence.tokens)) - sequence.num_computed
        size = min(max(size, MIN_CHUNK), left)
        if left - size == 1:
            size += 1 if size <= MIN_CHUNK else -1
        return Chunk(sequence, sequence.num_computed, sequence.num_computed + size)

    # What the engine reports

    def prefilled(self, chunk: Chunk) -> None:
        """A chunk is in the cache."""
        chunk.sequence.num_computed = chunk.sequence.num_prefilled = chunk.stop

    def join(self, sequence: Sequence) -> Move | None:
        """The prefill of the first is complete: it runs from the next step on, at the end of the batch."""
        assert sequence is self.prefilling[0]
        del self.prefilling[0]
        move = None
        if sequence.slot != len(self.running):
            self.warm.drop(len(self.running))
            move = Move(sequence.slot, len(self.running), sequence.num_computed)
            self.warm.released.append(sequence.slot)
        sequence.slot = len(self.running)
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        return move

    def released(self) -> list[tuple[int, int]]:
        """(slot, tokens to keep) of slots whose other memory can be given back, each reported once."""
        slots, self.warm.released = set(self.warm.released), []
        live = {s.slot: s.num_computed for s in self}
        return [(slot, live.get(slot, 0)) for slot in sorted(slots) if slot not in self.warm]

    def intact(self, sequence: Sequence) -> bool:
        """Whether its slot still holds all of its tokens: what lies before the shortest window is given back."""
        return self.limits.window is None or sequence.num_computed <= self.limits.window

    def reusable(self, sequence: Sequence) -> int:
        """How many of its first tokens another sequence may take over from its slot."""
        if not self.intact(sequence):
            return 0
        if self.limits.states_every:
            return sequence.kept
        return sequence.num_computed if self.limits.reuse_generated else sequence.num_prefilled

    def found(self, sequence: Sequence, length: int) -> None:
        """The first `length` tokens of a sequence in PREFILL were put into its slot from elsewhere."""
        sequence.num_computed = sequence.num_prefilled = sequence.kept = length
        sequence.num_cached = min(length, sequence.prompt_length)

    # Inside

    def _reusable(self, sequence: Sequence) -> tuple[int, int]:
        """(slot, tokens) of the longest prefix that lies in some slot already; the last chunk is always computed."""
        limit = 0 if sequence.scored else len(sequence.tokens) - MIN_CHUNK
        best = self.warm.match(sequence.tokens, limit)
        for other in self.running:
            reusable = self.reusable(other)
            shared = common_prefix(other.tokens, sequence.tokens, min(limit, reusable))
            if shared > best[1] and (shared == reusable or not self.limits.states_every):
                best = (other.slot, shared)
        return best if best[1] >= MIN_CHUNK else (-1, 0)

    def _fits_beside(self, sequence: Sequence, shared: int, size: int) -> bool:
        """Whether it can be computed together with those in PREFILL; not if it can soon copy much of it from them."""
        left = len(sequence.tokens) - shared
        limit = len(sequence.tokens) - MIN_CHUNK
        copied = max(common_prefix(other.tokens, sequence.tokens, limit) for other in self.prefilling) - shared
        return 2 * copied <= left and not sequence.scored and _fit(self.prefilling, size, left)

    def _stops(self, tokens: int) -> list[int]:
        """The last place where states are kept that leaves something to compute; nowhere, in a short prompt."""
        every = self.limits.states_every
        last = (tokens - MIN_CHUNK) // every * every if every else 0
        return [last] if last > 0 else []

    def _price(self, sequence: Sequence) -> int:
        sure = not self.limits.optimistic or sequence.preemptions >= MAX_PREEMPTIONS
        return self.pool.blocks(sequence.positions if sure else min(len(sequence.tokens) + 1, sequence.positions))

    def _pay(self, sequence: Sequence, price: int, keep: int = -1) -> bool:
        """Make the sequence hold `price` blocks, giving up warm slots for them, the slot `keep` last."""
        missing = price - sequence.blocks
        if missing <= 0:
            return True
        if missing > self.pool.free + self.warm.blocks:
            return False
        self.warm.evict(missing, keep)
        self.warm.evict(missing)
        assert self.pool.take(missing)
        sequence.blocks = price
        return True

    def _start(self, sequence: Sequence, slot: int, source: int, shared: int, in_place: bool) -> Move | None:
        sequence.status = Status.PREFILL
        self.prefilling.append(sequence)
        sequence.slot = source if in_place else slot
        self.found(sequence, shared if source >= 0 else 0)
        sequence.checkpoint_positions = self._stops(len(sequence.tokens))
        self.warm.drop(sequence.slot)
        self.warm.released.append(sequence.slot)  # whatever lies beyond `length` there
        return None if in_place or source < 0 else Move(source, sequence.slot, shared)

    def _take_out(self, sequence: Sequence) -> list[Move]:
        """Remove one sequence from the batch, filling its slot from the end."""
        last = self.running.pop()
        if last is sequence:
            self._vacate(sequence)
            return []
        move = Move(last.slot, sequence.slot, last.num_computed)
        self.warm.released.append(last.slot)
        self.running[sequence.slot] = last
        last.slot = sequence.slot
        self._forget(sequence)
        return [move]

    def _vacate(self, sequence: Sequence) -> None:
        """Leave a slot that nobody else takes: it stays cached unless its contents are useless or not to be trusted."""
        reusable = self.reusable(sequence)
        if reusable >= MIN_CHUNK and sequence.status is Status.FINISHED and sequence.finish_reason != "error":
            self.warm.keep(sequence, reusable)
            sequence.blocks = 0
        else:
            self.warm.released.append(sequence.slot)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self.pool.give(sequence.blocks)
        sequence.blocks = 0
        sequence.slot = -1

    def _preempt(self) -> list[Move]:
        """Send the newest sequence back to the front of the queue; it keeps its tokens and is computed again."""
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
        self.waiting.appendleft(victim)
        return moves


def _fit(sequences: list[Sequence], size: int, *others: int) -> bool:
    """Whether what is left of these sequences, and `others`, makes a run of `size` tokens, padded to the longest."""
    left = [len(sequence.tokens) - sequence.num_computed for sequence in sequences] + list(others)
    scored = any(sequence.scored for sequence in sequences)  # takes another way, in pieces
    return not scored and min(left) >= MIN_CHUNK and len(left) * max(left) <= size
