"""Quantized matrices on disk, so that a run that was killed does not quantize them again."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .matrix import Index, QuantizedMatrix
from .packing import pack_rows
from .scales import Steps
from .scheme import QuantConfig, Scheme
from .unpacking import read_fields

Made = tuple[QuantizedMatrix, Index]


class ResumeCache:
    """Matrices and the indices of their residual channels, by name.

    Args:
        folder: made when the first matrix is kept; None keeps nothing.
        fingerprint: of the plan, which with a matrix's choice decides its codes; what another plan made is not used.
    """

    def __init__(self, folder: Path | None, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def get_or_make(self, name: str, config: QuantConfig, kind: np.dtype[Any], make: Callable[[], Made]) -> Made:
        """The matrix called `name`, stored by `choice` with scales in `kind`, from disk or else from `make`."""
        if self._folder is None:
            return make()
        path, fingerprint = self._folder / f"{name}.codes", f"{self._fingerprint} {config} {kind}"
        found = _read(path, fingerprint, config.scheme)
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
    """A line of JSON that says what follows, then the bytes of each array.

    Not .npz: numpy reads its headers with `ast.literal_eval`, which fails now and then in threads of CPython 3.11
    ("AST constructor recursion depth mismatch").
    """
    packed = pack_rows(matrix.codes, matrix.scheme.bits)
    arrays: dict[str, npt.NDArray[Any]] = {"codes": packed, "scales": matrix.scales, "index": index}
    if matrix.zero_points is not None:
        arrays["zero_points"] = matrix.zero_points
    if matrix.steps is not None:
        arrays["steps"] = matrix.steps.values
    described = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    inputs, signed = matrix.codes.shape[1], bool(matrix.steps and matrix.steps.signed)
    head = {"fingerprint": fingerprint, "arrays": described, "inputs": inputs, "signed": signed}
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(json.dumps(head).encode() + b"\n")
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    temporary.replace(path)


def _read(path: Path, fingerprint: str, scheme: Scheme) -> Made | None:
    """What `_write` wrote; None if there is nothing, or something else."""
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline())
            if head["fingerprint"] != fingerprint:
                return None
            found = {name: _array(file.read, kind, shape) for name, kind, shape in head["arrays"]}
        steps = Steps(found["steps"], head["signed"]) if "steps" in found else None
        codes = np.ascontiguousarray(read_fields(found["codes"], scheme.bits)[:, : head["inputs"]])
        matrix = QuantizedMatrix(scheme, codes, found["scales"], found.get("zero_points"), steps)
        return matrix, found["index"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _array(read: Callable[[int], bytes], kind: str, shape: list[int]) -> npt.NDArray[Any]:
    dtype = np.dtype(kind)
    return np.frombuffer(read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
