"""Limits of the scheduler."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one engine.

    Args:
        slots: sequences that decode together.
        context: most tokens of one sequence.
        window: shortest attention window of any layer, or None; longer slots no longer hold the tokens before it.
        optimistic: admit before the whole answer is sure to fit, and preempt if it does not.
        reuse_generated: let later prompts reuse keys and values that decode computed, not only those of prefill.
        states_every: tokens between checkpoints of recurrent state, which cannot be rewound: a prefix is reused only at
            checkpoints. 0: the model has no recurrent state, and any prefix can be reused.
    """

    slots: int
    context: int
    window: int | None = None
    optimistic: bool = False
    reuse_generated: bool = False
    states_every: int = 0
