"""The table after a run: matrices of one kind in one line, with bits, bytes and error."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .flow import Result
from .writer import Outcome


@dataclass(frozen=True)
class Line:
    """Matrices that differ only in their layer, stored alike. Errors are relative: ‖W − Ŵ‖ / ‖W‖."""

    name: str
    count: int
    stored: str
    bytes_before: int
    bytes_after: int
    mean_error: float
    worst_error: float


def summarize(result: Result) -> list[Line]:
    """Group the outcomes by kind and storage, in order of first appearance."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in result.outcomes:
        kind = re.sub(r"\.\d+\.", ".*.", outcome.site.name)
        groups.setdefault((kind, _stored(outcome)), []).append(outcome)
    return [_line(kind, stored, outcomes) for (kind, stored), outcomes in groups.items()]


def _line(kind: str, stored: str, outcomes: list[Outcome]) -> Line:
    errors = [o.tensor.relative_error for o in outcomes if o.tensor] or [0.0]
    return Line(
        kind,
        len(outcomes),
        stored,
        sum(o.bytes_before for o in outcomes),
        sum(o.tensor.bytes if o.tensor else o.bytes_before for o in outcomes),
        sum(errors) / len(errors),
        max(errors),
    )


def _stored(outcome: Outcome) -> str:
    if outcome.tensor is None:
        return f"unchanged: {outcome.reason}"
    more = f" +{outcome.tensor.outliers}" if outcome.tensor.outliers else ""
    grid = "symmetric" if outcome.tensor.symmetric else "asymmetric"
    return f"int{outcome.tensor.bits} g{outcome.tensor.group_size} {grid}{more}"


def columns(rows: list[tuple[str, ...]], left: set[int]) -> Iterator[str]:
    """Rows as aligned text; the columns in `left` to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(cells).rstrip()
