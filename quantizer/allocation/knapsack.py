"""Spend a budget of bytes, or of time, where it buys most: a knapsack over the candidates of each matrix."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..storage.scheme import QuantConfig

_BISECTIONS = 60
_PRICES = (
    1e-20,
    1e3,
)  # nats per byte or nanosecond: at one end all candidates are bought, at the other only the smallest


@dataclass(frozen=True)
class Candidate:
    """One way to store one matrix: what it costs, and the KL divergence that it is predicted to add.

    Attributes:
        config: how it is stored.
        cost: in bytes, or in nanoseconds of a decode step.
        predicted_kl: in nats.
        slowness: how much dearer than it is its cost looks, where it runs slower than others of its size.
    """

    config: QuantConfig
    cost: float
    predicted_kl: float
    slowness: float = 1.0


def allocate(
    options: Mapping[str, Sequence[Candidate]], budget: float, size: Callable[[Mapping[str, Candidate]], float]
) -> dict[str, Candidate]:
    """Choose an option for each matrix so that the summed KL is least within the budget.

    Minimises Σ predicted KL + λ · cost · slowness for each matrix by itself, and bisects the price λ.

    Args:
        options: by weight name.
        budget: of what `size` tells; at least that of `smallest`.
        size: the whole cost of a choice: bytes of the file with everything that is not quantized, or nanoseconds.
    """
    best, low, high = smallest(options), *_PRICES
    for _ in range(_BISECTIONS):
        price = (low * high) ** 0.5
        chosen = {name: _cheapest(candidates, price) for name, candidates in options.items()}
        if size(chosen) <= budget:
            best, high = chosen, price
        else:
            low = price
    return _fill(best, options, budget, size)


def smallest(options: Mapping[str, Sequence[Candidate]]) -> dict[str, Candidate]:
    """The cheapest candidate of each matrix."""
    return {name: min(candidates, key=lambda candidate: candidate.cost) for name, candidates in options.items()}


def _fill(
    chosen: dict[str, Candidate],
    options: Mapping[str, Sequence[Candidate]],
    budget: float,
    size: Callable[[Mapping[str, Candidate]], float],
) -> dict[str, Candidate]:
    """Spend what the prices left over: one price moves many matrices at once, and may stop far below the budget."""
    refused: set[tuple[str, Candidate]] = set()
    while True:
        left = budget - size(chosen)
        better = [
            (
                (now.predicted_kl - candidate.predicted_kl)
                / max(1.0, candidate.cost * candidate.slowness - now.cost * now.slowness),
                name,
                candidate,
            )
            for name, now in chosen.items()
            for candidate in options[name]
            if candidate.predicted_kl < now.predicted_kl
            and candidate.cost - now.cost <= left
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
            candidate.predicted_kl + price * candidate.cost * candidate.slowness,
            candidate.cost,
        ),
    )
