"""The scheduler as pure code: a cache of plain lists follows its moves, and must always hold the right tokens."""

from itertools import count

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.cache.blocks import BlockPool
from runtime.cache.recurrent import RecurrentStateCache, state_slots_of
from runtime.cache.state_memory import HostStates, StateTensor
from runtime.engine.scheduling.decision import Decision
from runtime.engine.scheduling.limits import Limits
from runtime.engine.scheduling.scheduler import Scheduler
from runtime.engine.scheduling.sequence import Sequence, Status
from runtime.errors import PromptTooLongError

CONTEXT = 40


def scheduler(slots: int = 4, blocks: int = 1000, states_every: int = 0, **limits: bool) -> Scheduler:
    pool = BlockPool(blocks, 4, row_blocks=1 if states_every else 0)
    return Scheduler(Limits(slots=slots, context=CONTEXT, states_every=states_every, **limits), pool)


def sequence(number: int, prompt: list[int], end: int = CONTEXT) -> Sequence:
    return Sequence(number, list(prompt), len(prompt), end)


def folded(state: float, tokens: list[int]) -> float:
    """What a layer makes of its state and more tokens: a number that tells every history from every other."""
    for token in tokens:
        state = (31 * state + token + 1) % 9973
    return state


class FakeStates:
    """Real rows of states, of one number each."""

    def __init__(self, slots: int, kept: bool) -> None:
        memory = HostStates([StateTensor("state", (1,))] if kept else [], state_slots_of(slots))
        self.slots = RecurrentStateCache(memory, slots)
        self.values: np.ndarray | None = memory.arrays[0][:, 0] if kept else None

    def step(self, first: int, histories: list[list[int]], chunks: list[list[int]], intermediate: bool = False) -> None:
        pasts = [len(history) for history in histories]
        with self.slots.advance(first, pasts, list(map(len, chunks)), intermediate=intermediate) as (source, target):
            for place, (history, chunk) in enumerate(zip(histories, chunks, strict=True)):
                if self.values is not None:
                    assert self.values[source + place] == folded(0, history)
                    self.values[target + place] = folded(self.values[source + place], chunk)

    def prefill(self, slot: int, history: list[int], chunk: list[int]) -> None:
        """In two halves, where there are two."""
        half = len(chunk) // 2
        if half:
            self.step(slot, [history], [chunk[:half]], intermediate=True)
        self.step(slot, [history + chunk[:half]], [chunk[half:]])


class FakeCache:
    """Rows of token ids where a real cache has keys and values; it does what the engine does."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.slots: dict[int, list[int]] = {}
        self.states = FakeStates(scheduler.limits.slots, scheduler.limits.states_every > 0)

    def apply(self, decision: Decision) -> None:
        for move in decision.moves:
            assert len(self.slots[move.source]) >= move.length
            self.slots[move.target] = self.slots[move.source][: move.length]
            self.states.slots.copy_slot(move.source, move.target, move.length)
        for slot, keep in decision.released:
            self.states.slots.free_slot(slot, keep)
            self.slots[slot] = self.slots.get(slot, [])[:keep]

    def step(self, finished: set[int], chunk: int, together: int = 0, failing: bool = False) -> None:
        """One turn of the engine; sequences whose ids are in `finished` stop at their next token.

        Up to `together` tokens of several prompts are prefilled in one run; a failing prefill commits nothing.
        """
        self.apply(self.scheduler.retire())
        self.admit(together)
        self.apply(self.scheduler.grow())
        self.decode(failing)
        for one in self.scheduler.running:
            assert self.slots[one.slot][: one.num_computed] == one.tokens[:-1]
            self.slots[one.slot] = list(one.tokens)
            self.token(one, finished)
            one.num_computed += 1
        self.prefill(finished, max(chunk, together), failing)

    def admit(self, together: int) -> None:
        admitted = True
        while admitted:
            decision = self.scheduler.admit(together)
            self.apply(decision)
            admitted = decision.admitted is not None

    def decode(self, failing: bool) -> None:
        """The states' part of a step; one that fails is repeated row by row."""
        histories = [one.tokens[: one.num_computed] for one in self.scheduler.running]
        tokens = [one.tokens[-1:] for one in self.scheduler.running]
        if histories:
            self.states.step(0, histories, tokens)
        if failing:
            for slot, (history, token) in enumerate(zip(histories, tokens, strict=True)):
                self.states.step(slot, [history], [token])

    def prefill(self, finished: set[int], size: int, failing: bool) -> None:
        chunks = self.scheduler.next_chunks(size)
        assert len({chunk.sequence.slot - place for place, chunk in enumerate(chunks)}) <= 1
        for chunk in chunks:
            one = chunk.sequence
            assert self.slots.get(one.slot, [])[: chunk.start] == one.tokens[: chunk.start]
            self.states.prefill(one.slot, one.tokens[: chunk.start], one.tokens[chunk.start : chunk.stop])
            if failing:
                continue
            self.slots[one.slot] = one.tokens[: chunk.stop]
            self.scheduler.prefilled(chunk)
            if one.num_computed in one.checkpoint_positions and self.states.slots.keep(one.slot, one.num_computed):
                one.kept = one.num_computed
        for chunk in chunks:
            if not failing and chunk.stop == len(chunk.sequence.tokens):
                self.first_token(chunk.sequence, finished)

    def first_token(self, one: Sequence, finished: set[int]) -> None:
        self.token(one, finished)
        if one.status is Status.PREFILL:
            self.apply(self.scheduler.join(one))

    def token(self, one: Sequence, finished: set[int]) -> None:
        one.tokens.append(sum(one.tokens) % 3)
        if len(one.tokens) >= one.max_len or one.id in finished:
            self.apply(self.scheduler.finish(one, "length"))


class SchedulerMachine(RuleBasedStateMachine):
    """Submit, cancel, fail, stop and run in any order, under either admission and any amount of memory."""

    @initialize(
        slots=st.integers(1, 4),
        blocks=st.integers(3, 24),
        optimistic=st.booleans(),
        reuse_generated=st.booleans(),
        states_every=st.sampled_from([0, 4]),
    )
    def start(self, slots: int, blocks: int, optimistic: bool, reuse_generated: bool, states_every: int) -> None:
        limits = {"optimistic": optimistic, "reuse_generated": reuse_generated}
        self.scheduler = scheduler(slots, blocks, states_every, **limits)
        self.with_states = states_every > 0
        self.cache = FakeCache(self.scheduler)
        self.all: list[Sequence] = []
        self.stopping: set[int] = set()

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=CONTEXT), answer=st.integers(0, 20))
    def submit(self, prompt: list[int], answer: int) -> None:
        try:
            self.scheduler.check(len(prompt), answer)
        except PromptTooLongError:
            assert len(prompt) + min(1, answer) > self.scheduler.longest
            return
        one = sequence(len(self.all), prompt, min(len(prompt) + answer, self.scheduler.longest))
        if answer:
            self.all.append(one)
            self.scheduler.submit(one)

    @precondition(lambda self: self.all)
    @rule(data=st.data(), reason=st.sampled_from(["cancelled", "error", "timeout"]))
    def end(self, data: st.DataObject, reason: str) -> None:
        one = data.draw(st.sampled_from(self.all))
        if one.status is not Status.FINISHED:
            self.cache.apply(self.scheduler.finish(one, reason))

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def stop_soon(self, data: st.DataObject) -> None:
        self.stopping.add(data.draw(st.sampled_from(self.all)).id)

    @rule(chunk=st.integers(1, 9), together=st.sampled_from([0, 0, 8, 40]), failing=st.booleans())
    def step(self, chunk: int, together: int, failing: bool) -> None:
        self.cache.step(self.stopping, chunk, 0 if self.with_states else together, failing)

    @invariant()
    def memory_adds_up(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        pool = self.scheduler.pool
        in_slots = [*self.scheduler.running, *self.scheduler.prefilling]
        held = sum(one.blocks for one in in_slots) + self.scheduler.cached.blocks
        assert pool.free + held == pool.total
        assert all(one.blocks == 0 for one in self.scheduler.waiting)

    @invariant()
    def rows_and_sequences_are_one_to_one(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        running, prefilling = self.scheduler.running, self.scheduler.prefilling
        assert [one.slot for one in running] == list(range(len(running)))
        assert len(running) + len(prefilling) <= self.scheduler.limits.slots
        slots = [one.slot for one in prefilling]
        assert slots == sorted(set(slots))
        assert all(len(running) <= slot < self.scheduler.limits.slots for slot in slots)
        assert not any(one.slot in self.scheduler.cached for one in [*running, *prefilling])

    def teardown(self) -> None:
        """Whatever happened before, everything ends within a bounded number of turns."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(60 * (len(self.all) + 1)):
            self.cache.step(self.stopping, 8)
        assert all(one.status is Status.FINISHED for one in self.all)
        assert [*self.scheduler.waiting, *self.scheduler.prefilling, *self.scheduler.running] == []


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)


def run(cache: FakeCache, core: int = 200, stopping: frozenset[int] = frozenset()) -> None:
    for _ in range(core):
        cache.step(set(stopping), 8)


def test_a_freed_row_is_taken_in_the_next_turn() -> None:
    one = scheduler(slots=2)
    cache = FakeCache(one)
    for number, end in enumerate([3, 30, 30]):
        one.submit(sequence(number, [number, 1], end))
    cache.step(set(), 8)
    cache.step(set(), 8)
    cache.step(set(), 8)
    assert sorted(s.id for s in one.running) == [1, 2]


def test_no_evict_waits_until_the_whole_answer_fits() -> None:
    one = scheduler(blocks=10)  # 40 tokens
    first, second = sequence(0, [1] * 4, 24), sequence(1, [2] * 4, 24)
    cache = FakeCache(one)
    one.submit(first)
    one.submit(second)
    run(cache, 3)
    assert (first.status, second.status, one.preemptions) == (Status.RUNNING, Status.WAITING, 0)
    run(cache)
    assert second.status is Status.FINISHED


def test_optimistic_admits_both_and_preempts_the_newer() -> None:
    one = scheduler(blocks=10, optimistic=True)
    first, second = sequence(0, [1] * 4, 24), sequence(1, [2] * 4, 24)
    cache = FakeCache(one)
    one.submit(first)
    one.submit(second)
    run(cache, 3)
    assert (first.status, second.status) == (Status.RUNNING, Status.RUNNING)
    run(cache)
    assert one.preemptions == 1
    assert (first.preemptions, second.generated) == (0, 20)


@pytest.mark.parametrize(("prompt", "size", "expected"), [(9, 1, [2, 2, 2, 3]), (9, 4, [4, 3, 2]), (1, 5, [1])])
def test_no_chunk_is_a_single_token_unless_the_prompt_is(prompt: int, size: int, expected: list[int]) -> None:
    one = scheduler()
    one.submit(sequence(0, [0] * prompt))
    one.admit()
    sizes = []
    while sum(sizes) < prompt:
        chunk = one.next_chunks(size)[0]
        sizes.append(chunk.stop - chunk.start)
        one.prefilled(chunk)
    assert sizes == expected


def test_the_next_turn_of_a_chat_continues_in_its_warm_row() -> None:
    one = scheduler(reuse_generated=True)
    cache = FakeCache(one)
    first = sequence(0, [5, 6, 7], 8)
    one.submit(first)
    run(cache, 20)
    second = sequence(1, [*first.tokens, 9, 9], 20)
    one.submit(second)
    assert one.admit().moves == ()
    assert second.num_cached == 7  # all that was computed: the last token of an answer never enters the cache


def test_by_default_only_prefilled_tokens_are_reused() -> None:
    one = scheduler()
    cache = FakeCache(one)
    first = sequence(0, [5, 6, 7], 8)
    one.submit(first)
    run(cache, 20)
    second = sequence(1, [*first.tokens, 9, 9], 20)
    one.submit(second)
    one.admit()
    assert second.num_cached == 3


def test_what_failed_is_not_reused() -> None:
    one = scheduler()
    cache = FakeCache(one)
    ids = count()
    failed = sequence(next(ids), [5, 6, 7, 8], 20)
    one.submit(failed)
    run(cache, 3)
    one.finish(failed, "error")
    run(cache, 1)
    retry = sequence(next(ids), [5, 6, 7, 8], 20)
    one.submit(retry)
    one.admit()
    assert retry.num_cached == 0


def test_where_layers_keep_states_a_prompt_is_reused_only_where_they_were_kept() -> None:
    one = scheduler(states_every=4)
    cache = FakeCache(one)
    one.submit(sequence(0, [5] * 11, 14))
    cache.step(set(), 8)
    assert [(s.num_computed, s.kept, s.checkpoint_positions) for s in one.prefilling] == [(8, 8, [8])]
    run(cache, 9)
    for number, (prompt, cached) in enumerate([([5] * 10, 8), ([5] * 9, 0), ([5] * 7, 0)]):
        other = sequence(number + 1, prompt)
        one.submit(other)
        one.admit()
        one.finish(other, "cancelled")
        assert other.num_cached == cached


def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(PromptTooLongError, match=r"41 tokens and the context holds 40"):
        scheduler().check(41, 5)
    with pytest.raises(PromptTooLongError, match=r"13 tokens and all of the KV memory .* holds 12"):
        scheduler(blocks=3).check(13, 5)
    scheduler().check(39, 5)
    scheduler().check(40, 0)


@pytest.mark.parametrize(("size", "first", "second"), [(0, [0], [0, 1]), (9, [0], [0, 1]), (10, [0, 1], [0, 1, 2, 3])])
def test_short_prompts_start_together_within_a_size(size: int, first: list[int], second: list[int]) -> None:
    one = scheduler()
    cache = FakeCache(one)
    for number in range(4):
        one.submit(sequence(number, [number] * (5 if number % 2 else 3)))
    for expected in (first, second):
        cache.step(set(), 5, size)
        assert [running.id for running in one.running] == expected


def test_a_prompt_waits_for_a_prefix_that_is_being_computed() -> None:
    one = scheduler()
    cache = FakeCache(one)
    prompts = [sequence(number, [7] * 8 + [number] * 2) for number in range(3)]
    for prompt in prompts:
        one.submit(prompt)
    cache.step(set(), 40, 40)
    assert [running.id for running in one.running] == [0]
    cache.step(set(), 40, 40)
    assert [prompt.num_cached for prompt in prompts] == [0, 8, 8]


def test_when_one_of_several_ends_the_others_go_on_behind_it() -> None:
    one = scheduler()
    cache = FakeCache(one)
    prompts = [sequence(number, [number] * 4) for number in range(3)]
    for prompt in prompts:
        one.submit(prompt)
    cache.step(set(), 40, 40, failing=True)
    one.finish(prompts[1], "cancelled")
    assert [len(one.next_chunks(40)), one.prefilling] == [1, [prompts[0], prompts[2]]]
    cache.step(set(), 40, 40)
    cache.step(set(), 40, 40)
    assert [running.id for running in one.running] == [0, 2]
