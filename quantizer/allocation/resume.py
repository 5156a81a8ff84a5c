"""Sensitivity measurements on disk, so that a killed run goes on and another budget costs nothing."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from runtime.bundle import json_codec

from ..recipe import Scheme
from .budget import Measured


class MeasurementLog:
    """Measurements by weight name, in a file that belongs to one plan and only grows: a line of JSON for each.

    Args:
        path: the file; one that another plan wrote is begun anew.
        fingerprint: of the plan, the first line.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self.measured: dict[str, Measured] = {}
        header = json.dumps({"fingerprint": fingerprint}) + "\n"
        lines = _whole_lines(path)
        if lines[:1] != [header]:
            lines = [header]
        for line in lines[1:]:
            name, entry = json.loads(line)
            self.measured[name] = _decode(entry)
        _replace(path, lines)

    def add(self, name: str, measured: Measured) -> None:
        """Keep one measurement, in memory and on disk."""
        self.measured[name] = measured
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, _encode(measured)]) + "\n")


def _whole_lines(path: Path) -> list[str]:
    """The last line of a process that was killed may have no end; it is measured again."""
    if not path.is_file():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def _replace(path: Path, lines: list[str]) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(path)


def _encode(measured: Measured) -> dict[str, Any]:
    damages = [
        [json_codec.encode(scheme), base64.b64encode(values.astype("<f4").tobytes()).decode()]
        for scheme, values in measured.damages.items()
    ]
    return {"kl": measured.kl, "damages": damages}


def _decode(entry: dict[str, Any]) -> Measured:
    damages = {
        Scheme(**scheme): np.frombuffer(base64.b64decode(values), "<f4").astype(np.float32)
        for scheme, values in entry["damages"]
    }
    return Measured(entry["kl"], damages)
