"""A sequence: the scheduler's view of one request."""

from dataclasses import dataclass, field
from enum import Enum


class Status(Enum):
    """The stage of a sequence. Stages only move forward, except that a preempted sequence waits again."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of one request and their place in the cache.

    `num_computed` is the only commit point: a step writes keys and values at positions from `num_computed` on, and
    `num_computed` grows only when its token has been sampled. A failed or cancelled step therefore needs no undo.

    Attributes:
        id: unique within one engine.
        tokens: prompt, then what was generated. The last token of a running sequence is not in the cache yet.
        prompt_length: how many of them are the prompt.
        max_len: most tokens, prompt and answer together.
        arrival: when it was submitted, in seconds of a monotonic clock.
        deadline: when it is given up, on the same clock.
        slot: its slot of the cache while it is in PREFILL or RUNNING, else -1.
        num_computed: tokens whose keys and values are in the cache.
        num_prefilled: how many of those were computed by prefill; decode may differ from it in the last bit.
        num_cached: prompt tokens that were found in the cache instead of computed.
        blocks: blocks of the pool that it holds.
        scored: whether every prompt position must be computed, because its logits are wanted.
        checkpoint_positions: where prefill pauses to keep the recurrent state.
        kept: tokens after which its slot keeps the recurrent state; other sequences can continue only there.
        adapter: number of its LoRA adapter, from 1 on; 0: none. Keys and values are of use to the same adapter only.
        streamed: whether somebody reads the answer while it grows, so that the time between tokens matters.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    max_len: int
    arrival: float = 0.0
    deadline: float | None = None
    status: Status = Status.WAITING
    slot: int = -1
    num_computed: int = 0
    num_prefilled: int = 0
    num_cached: int = 0
    blocks: int = 0
    preemptions: int = 0
    finish_reason: str | None = None
    scored: bool = False
    checkpoint_positions: list[int] = field(default_factory=list)
    kept: int = 0
    streamed: bool = False
    adapter: int = 0

    @property
    def generated(self) -> int:
        """How many tokens were generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def positions(self) -> int:
        """Positions of the cache that it needs at most: the last generated token is never fed back."""
        return max(self.prompt_length, self.max_len - 1)
