"""Prefill chunks: which tokens of which prompts the next run computes."""

from collections.abc import Sequence as List

from ...cache.slots import common_prefix
from ...ort.runner_protocol import MIN_CHUNK
from .decision import Chunk
from .sequence import Sequence


def next_chunks(prefilling: List[Sequence], size: int) -> list[Chunk]:
    """The rest of several prompts at consecutive slots, or one chunk of about `size` tokens."""
    together: list[Sequence] = []
    for sequence in prefilling:
        consecutive = sequence.slot == prefilling[0].slot + len(together)
        if not (consecutive and fit([*together, sequence], size)):
            break
        together.append(sequence)
    if len(together) > 1:
        return [Chunk(sequence, sequence.num_computed, len(sequence.tokens)) for sequence in together]
    return [next_chunk(prefilling[0], size)] if prefilling else []


def next_chunk(sequence: Sequence, size: int) -> Chunk:
    """A sequence's next chunk of about `size` tokens; never one that has, or leaves, a single token."""
    stops = (stop for stop in sequence.checkpoint_positions if stop > sequence.num_computed)
    left = min(stops, default=len(sequence.tokens)) - sequence.num_computed
    size = min(max(size, MIN_CHUNK), left)
    if left - size == 1:
        size += 1 if size <= MIN_CHUNK else -1
    return Chunk(sequence, sequence.num_computed, sequence.num_computed + size)


def fits_beside(sequence: Sequence, shared: int, prefilling: List[Sequence], size: int) -> bool:
    """Whether one run can compute a sequence, `shared` tokens of which are cached, beside those in prefill.

    False if the sequence can soon copy much of its prompt from one of them.
    """
    left = len(sequence.tokens) - shared
    limit = len(sequence.tokens) - MIN_CHUNK
    copied = max(common_prefix(other.tokens, sequence.tokens, limit) for other in prefilling) - shared
    return 2 * copied <= left and not sequence.scored and fit(prefilling, size, left)


def fit(sequences: List[Sequence], size: int, *others: int) -> bool:
    """Whether a run of `size` tokens holds the rest of these sequences and `others`, padded to the longest."""
    left = [len(sequence.tokens) - sequence.num_computed for sequence in sequences] + list(others)
    scored = any(sequence.scored for sequence in sequences)  # takes another way, in pieces
    return not scored and min(left) >= MIN_CHUNK and len(left) * max(left) <= size
