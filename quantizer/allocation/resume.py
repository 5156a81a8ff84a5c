"""Sensitivity measurements on disk, so that a killed run goes on and another budget costs nothing."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from runtime.bundle import json_codec

from ..storage.matrix import Floats, Index
from ..storage.scheme import Scheme
from .budget import Measured, Tried


class MeasurementLog:
    """What was measured of each matrix, in a file that belongs to one plan and only grows: a line of JSON for each.

    Args:
        path: the file; one that another plan wrote is begun anew.
        fingerprint: of the plan, the first line.

    Attributes:
        kls: by weight name, what it adds to the KL divergence alone.
        outlier_channels: by weight name, inputs that stay in floating point.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self.kls: dict[str, float] = {}
        self._input_errors: dict[str, dict[Scheme, Floats]] = {}
        self._rounding_errors: dict[str, dict[int, float]] = {}
        self.outlier_channels: dict[str, Index] = {}
        header = json.dumps({"fingerprint": fingerprint}) + "\n"
        lines = _whole_lines(path)
        if lines[:1] != [header]:
            lines = [header]
        for line in lines[1:]:
            self._take(json.loads(line))
        _replace(path, lines)

    @property
    def measured(self) -> dict[str, Measured]:
        """By weight name, what is known in full."""
        return {n: Measured(kl, self._input_errors[n], self._rounding_errors[n]) for n, kl in self.kls.items()}

    def add(self, name: str, tried: Tried, channels: Index | None) -> None:
        """Keep what is known of one matrix before its text has gone through the rest of the model."""
        errors = [[json_codec.encode(scheme), _encode(values)] for scheme, values in tried.input_errors.items()]
        entry = {"name": name, "input_errors": errors, "rounding_errors": list(tried.rounding_errors.items())}
        self._append(entry | ({} if channels is None else {"outlier_channels": channels.tolist()}))

    def finish(self, kls: dict[str, float]) -> None:
        """Keep the KL divergences of matrices."""
        self._append({"kls": kls})

    def _append(self, entry: dict[str, Any]) -> None:
        self._take(entry)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _take(self, entry: dict[str, Any]) -> None:
        if "kls" in entry:
            self.kls |= entry["kls"]
            return
        errors = {Scheme(**scheme): _decode(values) for scheme, values in entry["input_errors"]}
        self._input_errors[entry["name"]] = errors
        self._rounding_errors[entry["name"]] = dict(entry["rounding_errors"])
        if "outlier_channels" in entry:
            self.outlier_channels[entry["name"]] = np.array(entry["outlier_channels"], np.int64)


def _whole_lines(path: Path) -> list[str]:
    """The last line of a process that was killed may have no end; it is measured again."""
    if not path.is_file():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def _replace(path: Path, lines: list[str]) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(path)


def _encode(values: Floats) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _decode(values: str) -> Floats:
    return np.frombuffer(base64.b64decode(values), "<f4").astype(np.float32)
