"""What steps need beside a graph: the cache, the states, and the way of inputs and logits, on one provider."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..bundle.kv_layout import STATE_COPIES
from ..bundle.manifest import Manifest
from ..bundle.tensor_specs import cache_pairs
from ..cache.host import CacheSlots, CacheTensor, GrowingSlots, PagedSlots
from ..cache.pages import pages_supported
from ..cache.recurrent import state_slots_of
from ..cache.state_memory import HostStates, StateMemory, StateTensor
from ..errors import OptionError
from .providers import ProviderName
from .transfers import CudaTransfers, FloatArray, HostTransfers, Transfers, storage_type

_GPU_SHARE = 0.85  # of the memory that is free behind the weights; the rest is for what a prefill computes
_LEAST_TOKENS = 16  # a slot of fewer is of no use


@dataclass(frozen=True)
class StepMemory:
    """Where a step reads and writes.

    Args:
        slots: keys and values.
        states: states of layers that keep some.
        transfers: inputs and logits.
        capacity: most tokens of one slot.
        device: the GPU that holds the memory, or None.
    """

    slots: CacheSlots
    states: StateMemory
    transfers: Transfers
    capacity: int
    device: Any = None

    def close(self) -> None:
        """Free everything."""
        self.slots.close()
        self.states.close()
        if self.device is not None:
            self.device.close()


def open_device(provider: ProviderName) -> Any:
    """The GPU with a stream for the steps, or None on the CPU."""
    if provider != "cuda":
        return None
    from ..cache.cuda_device import CudaDevice

    return CudaDevice()


@contextmanager
def closing_on_error(device: Any) -> Iterator[None]:
    """Close a GPU, or an executor, if what is done with it fails."""
    try:
        yield
    except BaseException:
        if device is not None:
            device.close()
        raise


def allocate(manifest: Manifest, slots: int, capacity: int, device: Any, kv_memory: int | None) -> StepMemory:
    """The memory of `slots` slots of at most `capacity` tokens. On a GPU, a slot holds what the budget pays for.

    Args:
        manifest: of the bundle.
        slots: how many there are.
        capacity: most tokens of one.
        device: the GPU, with the weights on it already, or None.
        kv_memory: bytes for keys, values and states on the GPU; None is a share of what is free.

    Raises:
        OptionError: the budget does not hold a few tokens in every slot.
        DeviceMemoryError: the GPU has less.
    """
    tensors, states = cache_tensors(manifest), state_tensors(manifest)
    if device is None:
        host = PagedSlots if pages_supported() else GrowingSlots
        places = HostStates(states, state_slots_of(slots))
        return StepMemory(host(tensors, slots, capacity), places, HostTransfers(), capacity)
    from ..cache.cuda import CudaSlots
    from ..cache.cuda_states import CudaStates

    capacity = _affordable(manifest, slots, capacity, device.free_memory(), kv_memory)
    gpu_states = CudaStates(states, state_slots_of(slots), device)
    return StepMemory(CudaSlots(tensors, slots, capacity, device), gpu_states, CudaTransfers(device), capacity, device)


def cache_tensors(manifest: Manifest) -> list[CacheTensor]:
    """The cache tensors of a bundle in the order of `cache_pairs`: all keys, then all values."""
    windows = [layer.window for layer in manifest.architecture.layers] * 2
    pairs = list(cache_pairs(manifest.graphs.prefill.inputs, manifest.graphs.prefill.outputs))
    return [
        CacheTensor(past.name, int(past.shape[1]), int(past.shape[3]), storage_type(past.dtype), window)
        for (past, _), window in zip(pairs, windows, strict=True)
    ]


def state_tensors(manifest: Manifest) -> list[StateTensor]:
    """The states of a bundle, of one sequence, in the order of its ports."""
    ports = (port for port in manifest.graphs.prefill.inputs if port.role == "past_state")
    return [StateTensor(port.name, tuple(int(size) for size in port.shape[1:])) for port in ports]


def gpu_budget(free: int, kv_memory: int | None) -> int:
    """Bytes for keys and values on a GPU that has `free` bytes left after loading the weights."""
    return min(kv_memory or free, int(free * _GPU_SHARE))


def _affordable(manifest: Manifest, slots: int, capacity: int, free: int, kv_memory: int | None) -> int:
    """Tokens of one slot if all slots are as long as the longest, and one layer is held twice while it grows."""
    budget = gpu_budget(free, kv_memory)
    states = STATE_COPIES * manifest.state_bytes * slots
    layers = len(manifest.architecture.layers)
    token = manifest.kv_cache.bytes_per_token * slots * (1 + 1 / max(1, layers))
    tokens = int((budget - states) / token) if token else capacity
    if tokens < min(_LEAST_TOKENS, capacity):
        raise OptionError(
            f"{budget:,} bytes of GPU memory hold not even {_LEAST_TOKENS} tokens in each of {slots} slots: a token "
            f"costs {manifest.kv_cache.bytes_per_token:,} bytes, the states of a slot {states // slots:,}. "
            "Raise --kv-memory, or lower --max-concurrency."
        )
    return min(capacity, tokens)


def logits_type(manifest: Manifest) -> str:
    """Element type of the logits."""
    return next(port.dtype for port in manifest.graphs.prefill.outputs if port.role == "logits")


def zeros_of(transfers: Transfers, manifest: Manifest, rows: int) -> FloatArray:
    """Logits of `rows` positions, where steps can write them."""
    return transfers.logits(rows, manifest.architecture.vocab_size, logits_type(manifest))
