"""Prefix sharing between slots: which prompt prefixes are in some slot already."""

from collections.abc import Sequence as List

from ...cache.slots import CachedSlots, common_prefix
from ...ort.runner_protocol import MIN_CHUNK
from .limits import Limits
from .sequence import Sequence


class SharedPrefixes:
    """Finds prefixes that one sequence may copy from the slot of another.

    Args:
        limits: attention window, recurrent state, and whether generated tokens are reused.
        cached: slots of finished sequences.
    """

    def __init__(self, limits: Limits, cached: CachedSlots) -> None:
        self._limits = limits
        self._cached = cached

    def longest(self, sequence: Sequence, running: List[Sequence]) -> tuple[int, int]:
        """(slot, tokens) of the longest shared prefix, or (-1, 0); the last chunk is always computed."""
        limit = 0 if sequence.scored else len(sequence.tokens) - MIN_CHUNK
        best = self._cached.match(sequence.tokens, limit, sequence.adapter)
        for other in running:
            if other.adapter != sequence.adapter:
                continue
            reusable = self.reusable(other)
            shared = common_prefix(other.tokens, sequence.tokens, min(limit, reusable))
            if shared > best[1] and (shared == reusable or not self._limits.states_every):
                best = (other.slot, shared)
        return best if best[1] >= MIN_CHUNK else (-1, 0)

    def intact(self, sequence: Sequence) -> bool:
        """Whether the slot still holds all tokens: those before the shortest attention window are evicted."""
        return self._limits.window is None or sequence.num_computed <= self._limits.window

    def reusable(self, sequence: Sequence) -> int:
        """How many leading tokens another sequence may copy from this slot."""
        if not self.intact(sequence):
            return 0
        if self._limits.states_every:
            return sequence.kept
        return sequence.num_computed if self._limits.reuse_generated else sequence.num_prefilled

    def checkpoints(self, tokens: int) -> list[int]:
        """The last state checkpoint before the end of the prompt; none in a short prompt."""
        every = self._limits.states_every
        last = (tokens - MIN_CHUNK) // every * every if every else 0
        return [last] if last > 0 else []
