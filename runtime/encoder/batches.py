"""Which texts run together: those of similar length, so that little is computed for padding."""

from collections.abc import Sequence

BATCH_TOKENS = 2048  # beyond, products gain nothing
_USED = 0.85  # of a batch's positions, at least, are of texts
_SLACK = 4  # or tokens by which a text may be shorter than the longest


def batch_with(first: int, lengths: Sequence[int], most: int = BATCH_TOKENS) -> list[int]:
    """The places of texts to run beside the one at `first`, itself included, nearest in length first.

    Args:
        first: a place in `lengths`.
        lengths: tokens of each text that waits.
        most: positions of a batch, padding included; a longer text runs alone.
    """
    near = sorted(range(len(lengths)), key=lambda i: (abs(lengths[i] - lengths[first]), i != first, i))
    chosen, longest, used = [first], lengths[first], lengths[first]
    for place in near:
        if place == first:
            continue
        length = lengths[place]
        width = max(longest, length)
        positions = width * (len(chosen) + 1)
        shortest = min(length, *(lengths[i] for i in chosen))
        if positions > most or (used + length < _USED * positions and width - shortest > _SLACK):
            break
        chosen.append(place)
        longest, used = width, used + length
    return chosen
