"""Sensitivity measurements on disk, so that a killed run goes on and another budget costs nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from runtime.bundle import json_codec

from ..recipe import Scheme
from .budget import Measured


class MeasurementLog:
    """Measurements by weight name, in a JSON file that belongs to one plan.

    Args:
        path: the file; one that another plan wrote is begun anew.
        fingerprint: of the plan.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self.measured: dict[str, Measured] = {}
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["fingerprint"] == fingerprint:
                self.measured = {name: _decode(entry) for name, entry in found["measured"].items()}

    def add(self, name: str, measured: Measured) -> None:
        """Keep one measurement, in memory and on disk."""
        self.measured[name] = measured
        entries = {key: _encode(value) for key, value in self.measured.items()}
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps({"fingerprint": self._fingerprint, "measured": entries}), encoding="utf-8")
        temporary.replace(self._path)


def _encode(measured: Measured) -> dict[str, Any]:
    damages = [[json_codec.encode(scheme), values.tolist()] for scheme, values in measured.damages.items()]
    return {"kl": measured.kl, "damages": damages}


def _decode(entry: dict[str, Any]) -> Measured:
    damages = {Scheme(**scheme): np.array(values, np.float32) for scheme, values in entry["damages"]}
    return Measured(entry["kl"], damages)
