"""What the scheduler decided and the engine carries out."""

from dataclasses import dataclass

from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Move:
    """Copy the first `length` tokens of slot `source` over slot `target`, where `sequence` goes on."""

    source: int
    target: int
    length: int
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Decision:
    """Moves in their order, then memory to give back, then the sequence that starts its prefill.

    Attributes:
        moves: what to copy between slots.
        released: (slot, tokens to keep) of slots whose other memory can be given back.
        admitted: the sequence that was admitted; it has `num_computed` tokens once the moves are made.
    """

    moves: tuple[Move, ...] = ()
    released: tuple[tuple[int, int], ...] = ()
    admitted: Sequence | None = None


NOTHING = Decision()  # to be done


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute keys and values of `sequence.tokens[start:stop]` in its slot."""

    sequence: Sequence
    start: int
    stop: int
