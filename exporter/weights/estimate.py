"""What an export needs, estimated before anything is written."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantizer.parallel import threads
from runtime.errors import BundleError
from runtime.host.memory import own_memory

from .read import working_bytes

if TYPE_CHECKING:
    from .plan import Weight
    from .store import Storage

# Measured by tests/bench/export_peak.py, in bytes.
_GRAPHS = 2 << 20
_STARTED = 10 << 20  # what threads and readers take that were not there before
_GRAPHS_EACH = 100 << 10  # bytes of memory for each weight, both graphs' share included
_PACKING = 40 << 20  # of each thread: floats of a few blocks, and what is tried on them
_BLOCKS = 4 << 20  # of each thread where a matrix is never in memory whole
_SESSION = 12 << 20
_LEFT = 40 << 20  # what the allocator keeps of the first session, at most, while the second one runs
_SCALE = 4  # of a group, as float32


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


def estimate(
    weights: "list[Weight]", storage: "Storage", verification: int = 0, *, runs: bool = False, others: int = 0
) -> Estimate:
    """Without reading any weight.

    Args:
        weights, storage: what will be written, and how.
        verification: bytes of the reference's process, which runs after the weights are written, beside this one.
        runs: whether the graphs are run to be verified.
        others: bytes of the bundle's other files.
    """
    sizes = [storage.nbytes(weight) for weight in weights]
    largest = max((_working_bytes(weight, storage) for weight in weights), default=0)
    disk = sum(sizes) + sum(-size % (4096 if size >= 1 << 16 else 64) for size in sizes) + _GRAPHS + others
    session = session_bytes(weights, storage)
    verifying = verification + (_SESSION + session + min(session, _LEFT) if runs else 0)
    before = own_memory() + _STARTED + _GRAPHS_EACH * len(weights)
    return Estimate(disk, before + max(largest, verifying), verification)


def session_bytes(weights: "list[Weight]", storage: "Storage") -> int:
    """What a run of the graphs holds beside the mapped weights: the largest matrix decoded, and scales as float32."""
    decoded = scales = 0
    for weight in weights:
        site, config = storage.sites.get(weight.name), storage.config(weight)
        if site is not None and config is not None:
            scales += _SCALE * site.count * site.rows * config.scheme.groups(site.inputs)
            decoded = max(decoded, 4 * site.rows * site.inputs)
    return decoded + scales


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
            f"{output}: the bundle needs about {size_text(needed.disk)}, and {folder} has {size_text(free)} free. "
            f"Choose another output, or store less with --quantize int4."
        )


def size_text(size: int) -> str:
    """In gigabytes, or in megabytes where that says more."""
    return f"{size / 1e9:.2f} GB" if size >= 100e6 else f"{size / 1e6:.0f} MB"


def _working_bytes(weight: "Weight", storage: "Storage") -> int:
    """A matrix with codes takes one byte a weight, and is packed once more below 8 bits; if it is written while it is
    read, its scales alone; others as `read` says.
    """
    from .pack import streams

    site, config = storage.sites.get(weight.name), storage.config(weight)
    if site is None or config is None or storage.nbytes(weight) >= weight.nbytes:
        return working_bytes(weight)
    scheme, count = config.scheme, site.count if site.joined == "inputs" else 1
    values = count * site.rows * site.inputs
    packed = values // 2 if scheme.bits < 8 else 0
    scales = 2 * _SCALE * count * site.rows * scheme.groups(site.inputs)
    if storage.is_repacked(weight):
        copies = 2 if len(weight.sources) > 1 or site.role == "experts" else 1
        return copies * values + packed + scales
    if site.role != "experts" and streams(weight, site):
        return scales + _BLOCKS * (threads() + 1)
    return values + packed + scales + _PACKING * threads()
