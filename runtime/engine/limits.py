"""What the scheduler may use."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one engine.

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
