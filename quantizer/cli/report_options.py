"""The options of reports: checked before anything is computed."""

from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import QuantizationError

if TYPE_CHECKING:
    from ..evaluation.peers import Peers


def check_report(html: Path | None, peers: Path | None) -> "Peers":
    """The points of `--peers`, after a look at whether the report can be drawn and written.

    Raises:
        MissingDependencyError: the library that draws is not installed.
        QuantizationError: the report cannot be written, the peers cannot be read, or are given without a report.
    """
    from ..evaluation.page import require_writable
    from ..evaluation.peers import NO_PEERS, read_peers
    from ..evaluation.svg import require_matplotlib

    if html is None:
        if peers is not None:
            raise QuantizationError("--peers adds points to a report: give --html FILE, too.")
        return NO_PEERS
    require_matplotlib()
    require_writable(html)
    return read_peers(peers) if peers else NO_PEERS
