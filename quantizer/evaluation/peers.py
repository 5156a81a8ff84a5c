"""Points of other programs for the plots of a report, from a file that whoever measured them wrote."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import QuantizationError

from .plots import Point

_FORM = '{"points": [{"who": "llama.cpp", "name": "Q4_K_M", "bits": 6.27, "kl": 0.082, "tokens_per_second": 112}]}'


@dataclass(frozen=True)
class Peers:
    """What a file such as `docs/figures.json` says.

    Attributes:
        entries: `who`, `name`, and as far as known `bits`, `kl`, `tokens_per_second`.
        notes: how they were measured, by the file's own words.
    """

    entries: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def points(self, x: str) -> list[Point]:
        """Those whose KL and whose `x`, "bits" or "tokens_per_second", are known."""
        known = [entry for entry in self.entries if entry.get(x) is not None and entry.get("kl") is not None]
        return [Point(entry["name"], entry["who"], float(entry[x]), float(entry["kl"])) for entry in known]


NO_PEERS = Peers()


def read_peers(path: Path) -> Peers:
    """Read the points of other programs.

    Raises:
        QuantizationError: it cannot be read, or holds no such entries.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        for entry in whole["points"]:
            _check(entry)
    except OSError as error:
        raise QuantizationError(f"--peers {path}: cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, TypeError) as error:
        raise QuantizationError(f"--peers {path}: no list of points ({error!r}). It looks like {_FORM}.") from error
    notes = [f"{name}: {words}" for name, words in whole.items() if isinstance(words, str)]
    return Peers(tuple(whole["points"]), tuple(notes))


def _check(entry: Mapping[str, Any]) -> None:
    for name in ("who", "name"):
        if not isinstance(entry[name], str):
            raise TypeError(f"{name} is text")
    for name in ("bits", "kl", "tokens_per_second"):
        value = entry.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
            raise TypeError(f"{name} is a number from 0 on, not {value!r}")
