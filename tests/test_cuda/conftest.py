"""Bundles on the CUDA provider, over a CUDA that computes nothing (tests/fakecuda). `make test-cuda` runs these tests.

What is computed is noise. Allocations, copies, launches and synchronizations are ONNX Runtime's own, and are checked.
"""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = (
    "kernels", "products", "to_device", "to_device_bytes", "to_host", "to_host_bytes", "on_device", "waits",
    "allocations", "frees", "live", "peak", "faults", "graphs",
)  # fmt: skip


class FakeCuda:
    """Totals of the fake device, and calls that it is told to fail."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> int:
        values = (ctypes.c_longlong * len(NAMES))()
        self._library.fakecuda_totals(values)
        return dict(zip(NAMES, values, strict=True))[name]

    def forget_peak(self) -> None:
        """Let the peak be what is live now: earlier tests of this process may have had more."""
        self._library.fakecuda_reset_peak()

    def fail(self, call: str = "", at: int = 1, times: int = 1) -> None:
        """Let the `at`-th call of cudaMalloc, launch, copy or sync from now on fail, and `times - 1` after it."""
        self._library.fakecuda_fail(f"{call}:{at}:{times}".encode() if call else b"")


@pytest.fixture(scope="session")
def library() -> Any:
    try:
        library = ctypes.CDLL("libcudart.so.13")
        library.fakecuda_totals  # noqa: B018  # a real one has none, and its GPU is not for these tests
    except (OSError, AttributeError):
        pytest.skip("needs tests/fakecuda: make test-cuda")
    return library


@pytest.fixture
def cuda(library: Any) -> Iterator[FakeCuda]:
    """The fake device. A test that leaves memory behind, or does what CUDA forbids, fails."""
    import gc

    gc.collect()
    cuda = FakeCuda(library)
    live, faults = cuda.live, cuda.faults
    yield cuda
    cuda.fail()
    gc.collect()
    assert (cuda.live, cuda.faults) == (live, faults)


@pytest.fixture(scope="session")
def cuda_bundle(library: Any, tiny_checkpoint: Path, make_bundle: Callable[..., Path]) -> Callable[..., Path]:
    """The tiny Llama for CUDA, by type, exported once each."""
    made: dict[str, Path] = {}

    def bundle(dtype: str = "float16") -> Path:
        if dtype not in made:
            made[dtype] = make_bundle(tiny_checkpoint, target="cuda", dtype=dtype)
        return made[dtype]

    return bundle
