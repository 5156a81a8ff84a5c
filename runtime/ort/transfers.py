"""How a step's small inputs reach a graph and its logits come back, on the CPU and on a GPU.

On the CPU nothing is copied: graphs read the arrays that the step writes. On a GPU all inputs of a step lie one behind
the other in one block of pinned memory, so that a step is one copy there, the run, one copy back, and one wait.
"""

from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..bundle.tensor_specs import DTYPE_BITS
from ..cache.cuda_device import TO_DEVICE, TO_HOST, CudaDevice
from .session import onnxruntime

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.floating[Any]]
HOST_INPUTS = ("total_sequence_length", "attention_metadata")  # attention reads them on the host, on every provider
_ALIGNMENT = 256  # bytes, as cudaMalloc aligns
_BFLOAT16 = 16  # its number in ONNX; numpy has no such type
_FIRST_SIZE = 1 << 16  # bytes of inputs


def element_type(dtype: str) -> Any:
    """What bindings call an element type of the manifest: a numpy type, or ONNX's number where numpy has none."""
    return _BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype).type


def storage_type(dtype: str) -> np.dtype[Any]:
    """The numpy type in which the host keeps elements of a type, as bits where numpy does not know it."""
    return np.dtype(np.uint16) if dtype == "bfloat16" else np.dtype(dtype)


class Ports(Protocol):
    """The small inputs and the logits of one binding."""

    def set_input(self, name: str, role: str, array: npt.NDArray[Any]) -> None:
        """Bind an input; values that are written into the array later are seen by later runs."""

    def set_logits(self, name: str, logits: FloatArray) -> None:
        """Bind where the logits go, contiguous host memory of `Transfers.logits`."""

    def run(self, session: Any, options: Any) -> None:
        """Run with the inputs as they are; the logits are there when this returns."""


class Transfers(Protocol):
    """Makes the ports of bindings. One step at a time uses them."""

    device: str

    def logits(self, rows: int, width: int, dtype: str) -> FloatArray:
        """A host array `[rows, width]` for logits."""

    def ports(self, binding: Any) -> Ports:
        """The ports of a binding."""


class HostTransfers:
    """Graphs that read and write host memory."""

    device = "cpu"

    def logits(self, rows: int, width: int, dtype: str) -> FloatArray:
        """Zeros."""
        return np.zeros((rows, width), dtype)

    def ports(self, binding: Any) -> "HostPorts":
        """The ports of a binding."""
        return HostPorts(binding)


class HostPorts:
    """Inputs and logits bound where they are."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._held: dict[str, Any] = {}  # what the binding points into must outlive it

    def set_input(self, name: str, role: str, array: npt.NDArray[Any]) -> None:
        """Bind the array itself."""
        self._held[role] = array
        self._binding.bind_ortvalue_input(name, onnxruntime().OrtValue.ortvalue_from_numpy(array))

    def set_logits(self, name: str, logits: FloatArray) -> None:
        """Bind the array itself."""
        self._held["logits"] = logits
        self._binding.bind_ortvalue_output(name, onnxruntime().OrtValue.ortvalue_from_numpy(logits))

    def run(self, session: Any, options: Any) -> None:
        """Run the graph."""
        session.run_with_iobinding(self._binding, options)


class CudaTransfers:
    """Graphs that read and write the memory of a GPU, on the stream of `device`.

    Attributes:
        generation: changes when a block that bindings point to was replaced.
    """

    device = "cuda"

    def __init__(self, device: CudaDevice) -> None:
        self.gpu = device
        self.generation = 0
        self.host = device.pinned((_FIRST_SIZE,), np.uint8)
        self.inputs = device.allocate(_FIRST_SIZE)
        self.outputs, self._outputs_size = 0, 0

    def logits(self, rows: int, width: int, dtype: str) -> FloatArray:
        """A pinned array of zeros, and a block of at least its size on the device."""
        size = rows * width * DTYPE_BITS[dtype] // 8
        logits = self.gpu.pinned((rows, width), dtype)  # all that may fail comes before anything is replaced
        if size > self._outputs_size:
            old, self.outputs, self._outputs_size = self.outputs, self.gpu.allocate(size), size
            self._replaced(old)
        return logits

    def reserve_inputs(self, size: int) -> None:
        """Make the block of inputs hold `size` bytes."""
        if size > self.host.size:
            host = self.gpu.pinned((2 * size,), np.uint8)
            old, self.inputs, self.host = self.inputs, self.gpu.allocate(2 * size), host
            self._replaced(old)

    def ports(self, binding: Any) -> "CudaPorts":
        """The ports of a binding."""
        return CudaPorts(binding, self)

    def _replaced(self, old: int) -> None:
        self.generation += 1
        if old:
            self.gpu.release(old)


class CudaPorts:
    """Inputs at fixed addresses of the device, as long as their sizes stay the same."""

    def __init__(self, binding: Any, transfers: CudaTransfers) -> None:
        self._binding, self._transfers = binding, transfers
        self._inputs: dict[str, tuple[str, npt.NDArray[Any]]] = {}  # by role
        self._views: list[tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]] = []
        self._size, self._generation = 0, -1
        self._own = onnxruntime().RunOptions()  # of a run that brings none
        self._logits: tuple[str, FloatArray] = ("", np.zeros((0, 0), np.float32))

    def set_input(self, name: str, role: str, array: npt.NDArray[Any]) -> None:
        """Remember the array. What attention reads on the host is bound there."""
        if role in HOST_INPUTS:
            self._binding.bind_ortvalue_input(name, onnxruntime().OrtValue.ortvalue_from_numpy(array))
        self._inputs[role] = (name, array)
        self._generation = -1

    def set_logits(self, name: str, logits: FloatArray) -> None:
        """Remember the array."""
        self._logits = (name, logits)
        self._generation = -1

    def run(self, session: Any, options: Any) -> None:
        """One copy to the device, the run, one copy back, one wait."""
        transfers, gpu = self._transfers, self._transfers.gpu
        if self._generation != transfers.generation:
            self._lay_out()
        for view, array in self._views:
            view[:] = array.reshape(-1).view(np.uint8)
        gpu.copy_line(transfers.inputs, transfers.host.ctypes.data, self._size, TO_DEVICE)
        options = options or self._own
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")  # `finish` below waits
        try:
            session.run_with_iobinding(self._binding, options)
        except Exception:
            with suppress(Exception):  # the first error counts
                gpu.finish()  # the copy may still read the pinned block, which the next step writes
            raise
        logits = self._logits[1]
        if logits.size:
            gpu.copy_line(logits.ctypes.data, transfers.outputs, logits.nbytes, TO_HOST)
        gpu.finish()

    def _lay_out(self) -> None:
        """Give every input its place, and bind the places."""
        arrays = {name: array for role, (name, array) in self._inputs.items() if role not in HOST_INPUTS}
        starts = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays.values())]).tolist()
        self._transfers.reserve_inputs(starts[-1])
        self._views, self._size = [], starts[-1]
        for (name, array), start in zip(arrays.items(), starts, strict=False):
            self._views.append((self._transfers.host[start : start + array.nbytes], array))
            place = self._transfers.inputs + start
            self._binding.bind_input(name, "cuda", 0, array.dtype.type, array.shape, place)
        name, logits = self._logits
        self._binding.bind_output(name, "cuda", 0, logits.dtype.type, logits.shape, self._transfers.outputs)
        self._generation = self._transfers.generation
