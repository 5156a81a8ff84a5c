"""Steps that are bound once and run many times: one per prefill slot, and one per decode batch size."""

from ..errors import ExecutionError
from .binding import BindingKey, FloatArray
from .graph import BoundStep, GraphSession
from .memory import StepMemory
from .runner_protocol import MAX_REWIND


class BoundSteps:
    """Bound steps by role and slots; all are bound anew when the cache has moved.

    Args:
        prefill: runs every step but decode.
        decode: runs decode steps; may be the same session.
        memory: keys, values and states.
        logits: [slots, vocab], overwritten by every step.
        windowed: whether any layer attends to a window only, so that tokens before it can be evicted.
    """

    def __init__(
        self, prefill: GraphSession, decode: GraphSession, memory: StepMemory, logits: FloatArray, *, windowed: bool
    ) -> None:
        self.prefill, self._decode = prefill, decode
        self._memory = memory
        self._logits = logits
        self._windowed = windowed
        self._bound: dict[tuple[str, BindingKey], BoundStep] = {}
        self._generation = memory.slots.generation

    def get(self, role: str, span: BindingKey, length: int) -> BoundStep:
        """The step for a role and a span of slots, which then have room for `length` tokens each.

        Raises:
            ExecutionError: a slot cannot hold that many tokens.
        """
        self.reserve(length)
        key = (role, span)
        step = self._bound.get(key)
        if step is None:
            session = self._decode if role == "decode" else self.prefill
            step = self._bound[key] = BoundStep(session, self._memory, span, self._logits[: span.slots])
            if role == "prefill_without_logits":
                step.want_all(self._logits[:0])
        return step

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens in each slot, or raise ExecutionError."""
        slots, capacity = self._memory.slots, self._memory.capacity
        if length > capacity:
            raise ExecutionError(f"A step would need {length} tokens in one slot, and a slot holds {capacity}.")
        slots.reserve(length)
        if self._generation != slots.generation:  # the cache moved: every binding points into freed memory
            self._bound.clear()
            self._generation = slots.generation

    def evict_window(self, slot: int, before: int, after: int) -> None:
        """Evict what lies before the attention windows, now that the slot grew from `before` to `after` tokens."""
        if self._windowed:  # what a rejected draft may still need stays
            self._memory.slots.evict_window(slot, max(0, before - MAX_REWIND), max(0, after - MAX_REWIND))

    def close(self) -> None:
        """Release the bindings, the sessions and the memory."""
        self._bound.clear()
        del self.prefill, self._decode
        self._memory.close()
