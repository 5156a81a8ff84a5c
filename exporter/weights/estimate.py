"""What an export needs, estimated before anything is written."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import BundleError

from .read import working_bytes

if TYPE_CHECKING:
    from .plan import Weight
    from .store import Storage

_GRAPHS_AND_TOKENIZER = 32 << 20
_LIBRARIES = 200 << 20
_PACKING = 160 << 20  # floats of a few blocks, and what is tried on them


@dataclass(frozen=True)
class Estimate:
    """What the system caches of files is not counted.

    Args:
        disk: bytes of the bundle.
        memory: bytes at the most, of all processes together.
        verification: of those, what the reference takes that the graphs are compared with; 0 without one.
    """

    disk: int
    memory: int
    verification: int = 0


def estimate(weights: "list[Weight]", storage: "Storage", verification: int = 0) -> Estimate:
    """Without reading any weight. `verification`: bytes of the reference's process, which runs after the weights are
    written, beside this one."""
    sizes = [storage.nbytes(weight) for weight in weights]
    largest = max((_working_bytes(weight, storage) for weight in weights), default=0)
    disk = sum(sizes) + 4096 * len(sizes) + _GRAPHS_AND_TOKENIZER
    return Estimate(disk, _LIBRARIES + max(largest, verification), verification)


def require_space(output: str | Path, needed: Estimate) -> None:
    """Refuse to begin what cannot be finished.

    Raises:
        BundleError: too little is free where `output` will be.
    """
    folder = Path(output).absolute().parent
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed.disk:
        raise BundleError(
            f"{output}: the bundle needs about {needed.disk / 1e9:.2f} GB, and {folder} has {free / 1e9:.2f} GB free. "
            f"Choose another output, or store less with --quantize int4."
        )


def _working_bytes(weight: "Weight", storage: "Storage") -> int:
    """A matrix with codes is in memory as one byte a weight, and once more packed; others as far as they must be."""
    if weight.name in storage.sites and storage.nbytes(weight) < weight.nbytes:
        site = storage.sites[weight.name]
        return site.rows * site.inputs + storage.nbytes(weight) + _PACKING
    return working_bytes(weight)
