"""Quantized matrices on disk, so that a run that was killed does not quantize them again."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithms.residual_channels import Index
from ..recipe import QuantConfig, Scheme
from .matrix import QuantizedMatrix
from .scales import Steps

Made = tuple[QuantizedMatrix, Index]


class ResumeCache:
    """Matrices and their outlier indices, by name.

    Args:
        folder: made when the first matrix is kept; None keeps nothing.
        fingerprint: of the plan, which with a matrix's choice decides its codes; what another plan made is not used.
    """

    def __init__(self, folder: Path | None, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def get_or_make(self, name: str, choice: QuantConfig, kind: np.dtype[Any], make: Callable[[], Made]) -> Made:
        """The matrix called `name`, stored by `choice` with scales in `kind`, from disk or else from `make`."""
        if self._folder is None:
            return make()
        path, fingerprint = self._folder / f"{name}.npz", f"{self._fingerprint} {choice} {kind}"
        found = _read(path, fingerprint, choice.scheme)
        if found is None:
            found = make()
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(path, fingerprint, *found)
        return found

    def clear(self) -> None:
        """Remove them all; the bundle holds them now."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _write(path: Path, fingerprint: str, matrix: QuantizedMatrix, index: Index) -> None:
    arrays = {"codes": matrix.codes, "scales": matrix.scales, "index": index, "fingerprint": np.array(fingerprint)}
    if matrix.zero_points is not None:
        arrays["zero_points"] = matrix.zero_points
    if matrix.steps is not None:
        arrays |= {"steps": matrix.steps.values, "signed": np.array(matrix.steps.signed)}
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its keywords are arrays, but for one that is not used
    temporary.replace(path)


def _read(path: Path, fingerprint: str, scheme: Scheme) -> Made | None:
    """What `_write` wrote; None if there is nothing, or something else."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if str(arrays["fingerprint"]) != fingerprint:
                return None
            steps = Steps(arrays["steps"], bool(arrays["signed"])) if "steps" in arrays else None
            zeros = arrays.get("zero_points")
            return QuantizedMatrix(scheme, arrays["codes"], arrays["scales"], zeros, steps), arrays["index"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
