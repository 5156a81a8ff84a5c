"""The seam an embedder replaces: who computes a step, over slots of a cache that it owns.

An executor of one's own (`runtime.LLM(path, executor=…)`) gets continuous batching, prefix reuse, sampling and text
around whatever computes logits. The engine calls it from one thread, in this pattern:

    prefill(slot, …) once per chunk of a prompt     decode(ids, lengths) once per step for slots 0 … n-1
    copy_slot(source, target, length) to fill a hole    free_slot(slot, keep) when tokens are not needed any more
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from ..cache.host import Array
from .binding import FloatArray, IntArray

MIN_CHUNK = 2  # tokens; a chunk of one takes the decode kernel, whose last bit may differ
MAX_SCORED = 65  # positions whose logits are held at the same time
MAX_REWIND = 64  # tokens that a sequence may go back after a step: a draft that is not accepted


class StepInterrupted(Exception):  # noqa: N818  # not a failure: somebody asked for it
    """A running prefill was stopped by `interrupt`; nothing is committed, so there is nothing to undo."""


class ModelRunner(Protocol):
    """Computes steps over slots of a cache. It keeps no lengths: the caller says how much of a slot is live.

    Every call comes from one thread, except `interrupt`. Logits are views that the next call overwrites. An exception
    means that no length may grow; it must leave tokens below the lengths that were passed untouched.

    Attributes:
        slots: how many slots there are.
        capacity: most tokens of one slot.
        vocab_size: width of the logits.
        bytes_per_token: what one token of the cache costs.
        can_give_all_logits: whether `all_logits` works.
    """

    slots: int
    capacity: int
    vocab_size: int
    bytes_per_token: int
    can_give_all_logits: bool

    def prefill(self, slot: int, past: int, ids: IntArray) -> FloatArray:
        """Put `ids` [n] at positions `past …` of the slot; returns the logits [vocab] after the last of them."""

    def prefill_without_logits(self, slot: int, past: int, ids: IntArray) -> None:
        """As `prefill`, for all but the last chunk of a prompt, whose logits nobody wants."""

    def decode(self, ids: IntArray, lengths: IntArray) -> FloatArray:
        """Put `ids[r]` at position `lengths[r]` of each slot r = 0 … n-1; returns logits [n, vocab]."""

    def all_logits(self, slot: int, past: int, ids: IntArray) -> FloatArray:
        """As `prefill`, for at most MAX_SCORED ids; returns the logits [n, vocab] after each of them."""

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot over another slot."""

    def free_slot(self, slot: int, keep: int = 0) -> None:
        """The slot's tokens from `keep` on are not needed any more: give their memory back."""

    def read(self, slot: int, start: int, stop: int) -> list[Array]:
        """Copies of the keys and values at positions `[start, stop)`: what `write` takes."""

    def write(self, slot: int, start: int, block: list[Array]) -> None:
        """Put back what `read` returned, at position `start`."""

    def interrupt(self) -> None:
        """From any thread: make a running `prefill` raise StepInterrupted soon; does nothing when none runs."""

    def close(self) -> None:
        """Release sessions and memory."""


class BatchPrefill(Protocol):
    """What an executor may have besides: prompts of several slots in one run. `interrupt` does not stop it.

    Attributes:
        can_batch_prefill: whether `prefill_batch` works.
    """

    can_batch_prefill: bool

    def prefill_batch(self, first: int, pasts: Sequence[int], chunks: Sequence[IntArray]) -> FloatArray:
        """Put `chunks[i]` at positions `pasts[i] …` of slot `first + i`; returns logits [n, vocab] after their ends.

        Chunks have at least two ids. Each slot's logits, keys and values are, bit for bit, those of `prefill`.
        """


def batch_prefill_of(executor: ModelRunner) -> BatchPrefill | None:
    """The executor, if it can prefill several slots in one run."""
    return cast(BatchPrefill, executor) if getattr(executor, "can_batch_prefill", False) else None


def adapter_selection(executor: ModelRunner) -> Callable[[Sequence[int]], None] | None:
    """What tells an executor which LoRA adapter each row of the next steps has, 0 for none; None where it has none."""
    return cast(Any, executor).select_adapters if getattr(executor, "has_adapters", False) else None


class KeepsStates(Protocol):
    """What an executor has besides where layers keep states: they have seen every token and cannot go back.

    A slot is continued, and `copy_slot` takes its beginning along, only where its states are known: at 0, where the
    last step ended, where it began (the step is then undone), and where they were kept. Elsewhere: ExecutionError.

    Attributes:
        state_bytes: what the states of one slot take, with everything that is needed to undo and to keep; 0: none.
    """

    state_bytes: int

    def keep_state(self, slot: int, length: int) -> bool:
        """Keep the states behind the first `length` tokens, in place of those kept before; False: they are not known.

        Steps leave them as they are; a step before `length` and `free_slot` of what lies before it make them unknown.
        """

    def read_state(self, slot: int, length: int) -> list[Array]:
        """Copies of the states behind the first `length` tokens: what `write_state` takes."""

    def write_state(self, slot: int, length: int, block: list[Array]) -> None:
        """Put back what `read_state` returned, as the slot's only states, and keep them."""


def states_of(executor: ModelRunner) -> KeepsStates | None:
    """The executor, if its layers keep states."""
    return cast(KeepsStates, executor) if getattr(executor, "state_bytes", 0) else None
