"""Spend a budget of bytes where they buy most: a knapsack over the candidates of each matrix."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runtime.errors import QuantizationError

from ..storage.scheme import QuantConfig

_BISECTIONS = 60
_PRICES = (1e-20, 1e3)  # nats per byte: at one end all candidates are bought, at the other only the smallest


@dataclass(frozen=True)
class Candidate:
    """One way to store one matrix: what it costs, and the KL divergence that it is predicted to add.

    Attributes:
        config: how it is stored.
        nbytes: that it takes.
        predicted_kl: in nats.
        slowness: how much dearer than they are its bytes look, where it runs slower than others of its size.
    """

    config: QuantConfig
    nbytes: int
    predicted_kl: float
    slowness: float = 1.0


def allocate(
    options: Mapping[str, Sequence[Candidate]], budget: int, size: Callable[[Mapping[str, Candidate]], int]
) -> dict[str, Candidate]:
    """Choose an option for each matrix so that the summed KL is least within the budget.

    Minimises Σ predicted KL + λ · bytes · slowness for each matrix by itself, and bisects the price λ.

    Args:
        options: by weight name.
        budget: bytes of the whole file.
        size: bytes of the whole file under a choice, with everything that is not quantized.

    Raises:
        QuantizationError: the smallest choice is larger than the budget.
    """
    smallest = {name: min(candidates, key=lambda candidate: candidate.nbytes) for name, candidates in options.items()}
    if size(smallest) > budget:
        raise QuantizationError(
            f"budget: {budget:,} bytes are too few; the smallest this bundle can become is {size(smallest):,} bytes. "
            "Allow more bits per weight, or exclude fewer matrices."
        )
    best, low, high = smallest, *_PRICES
    for _ in range(_BISECTIONS):
        price = (low * high) ** 0.5
        chosen = {name: _cheapest(candidates, price) for name, candidates in options.items()}
        if size(chosen) <= budget:
            best, high = chosen, price
        else:
            low = price
    return _fill(best, options, budget, size)


def _fill(
    chosen: dict[str, Candidate],
    options: Mapping[str, Sequence[Candidate]],
    budget: int,
    size: Callable[[Mapping[str, Candidate]], int],
) -> dict[str, Candidate]:
    """Spend what the prices left over: one price moves many matrices at once, and may stop far below the budget."""
    refused: set[tuple[str, Candidate]] = set()
    while True:
        left = budget - size(chosen)
        better = [
            (
                (now.predicted_kl - candidate.predicted_kl)
                / max(1.0, candidate.nbytes * candidate.slowness - now.nbytes * now.slowness),
                name,
                candidate,
            )
            for name, now in chosen.items()
            for candidate in options[name]
            if candidate.predicted_kl < now.predicted_kl
            and candidate.nbytes - now.nbytes <= left
            and (name, candidate) not in refused
        ]
        if not better:
            return chosen
        _, name, candidate = max(better, key=lambda entry: entry[0])
        tried = {**chosen, name: candidate}
        if size(tried) <= budget:
            chosen = tried
        else:
            refused.add((name, candidate))  # alignment took more than its bytes


def _cheapest(candidates: Sequence[Candidate], price: float) -> Candidate:
    return min(
        candidates,
        key=lambda candidate: (
            candidate.predicted_kl + price * candidate.nbytes * candidate.slowness,
            candidate.nbytes,
        ),
    )
