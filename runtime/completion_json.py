"""A completion as plain data, for --json and batch files."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .outputs import Completion


def completion_json(answer: "Completion") -> dict[str, Any]:
    """What JSON can hold of an answer; its times become seconds."""
    plain = asdict(answer)
    plain["error"] = None if answer.error is None else str(answer.error)
    plain["alternatives"] = [completion_json(other) for other in answer.alternatives]
    plain["timings"] = {"time_to_first_token": answer.timings.time_to_first_token, "total": answer.timings.total}
    return plain
