"""Why the CUDA provider cannot start on this machine, found by looking instead of by failing."""

import contextlib
import ctypes
from pathlib import Path
from typing import Any

_DRIVER = "libcuda.so.1"
_PROVIDER_LIBRARY = "libonnxruntime_providers_cuda.so"


def missing_for_cuda(onnxruntime: Any) -> str | None:
    """What keeps CUDA from starting, as a sentence with its remedy; None if nothing does.

    Looked at in the order in which they are needed: the wheel, the driver, a device, then the libraries that the
    provider links to (CUDA runtime, cuBLAS, cuDNN, ...), of which the loader names the first that is absent.
    """
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return (
            f"the installed onnxruntime {onnxruntime.__version__} is the CPU-only wheel. "
            "Replace it: pip uninstall onnxruntime, then pip install 'onnxlm[gpu]'."
        )
    return missing_driver() or missing_library(onnxruntime)


def missing_driver() -> str | None:
    """What is wrong with the NVIDIA driver, or None."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return f"{_DRIVER} was not found: the NVIDIA driver is not installed (or not passed into this container)."
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status:
        return f"the NVIDIA driver answers with error {status}; `nvidia-smi` says more."
    return None if count.value else "the NVIDIA driver sees no GPU (check CUDA_VISIBLE_DEVICES)."


def missing_library(onnxruntime: Any) -> str | None:
    """The first library that the CUDA provider needs and the loader does not find, with the remedy, or None."""
    with contextlib.suppress(Exception):  # it prints and raises for reasons that the loader names better, below
        onnxruntime.preload_dlls()
    folder = Path(onnxruntime.__file__).parent / "capi"
    try:
        ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / _PROVIDER_LIBRARY))
    except OSError as error:
        return (
            f"{error}. The CUDA libraries (CUDA runtime, cuBLAS, cuDNN) come with pip install 'onnxlm[gpu]', "
            "or put the folder that has the missing one on LD_LIBRARY_PATH."
        )
    return None
