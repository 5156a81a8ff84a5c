"""Inputs and outputs of a run, bound once and used for many runs: only what changes is written between two runs."""

from dataclasses import dataclass
from typing import Any, Protocol

from ..bundle.manifest import Graph
from ..bundle.tensor_specs import cache_pairs, state_pairs
from .session import translated
from .transfers import FloatArray, IntArray, Transfers, element_type

__all__ = ["Binding", "BindingKey", "FloatArray", "IntArray"]


@dataclass(frozen=True)
class BindingKey:
    """The part of the memory that a step is bound to.

    Args:
        first, slots: a run of slots of the cache, updated in place.
        reads, writes: the first of as many places of states; what is read stays as it is.
    """

    first: int
    slots: int
    reads: int = 0
    writes: int = 0


class PlaceMemory(Protocol):
    """Where the states lie, as far as a binding needs to know."""

    def pointer(self, tensor: int, state_slot: int) -> int:
        """Address of a place of a state tensor."""


class CacheMemory(Protocol):
    """Where the cache tensors lie, as far as a binding needs to know."""

    device: str

    def pointer(self, tensor: int, slot: int) -> int:
        """Address of a slot of a cache tensor."""

    def shape(self, tensor: int, slots: int) -> tuple[int, ...]:
        """`[slots, kv_heads, capacity, head_width]`."""


class Binding:
    """One session with a span of slots bound to it.

    Args:
        session: the ONNX Runtime session.
        graph: its ports, from the manifest.
        memory: the cache tensors, in the order of `cache_pairs`.
        states: the state tensors, in the order of `state_pairs`.
        span: the slots, and the places of their states.
        transfers: how inputs get there and logits come back.
        logits: [outputs, vocab], of `transfers.logits`; every run overwrites it.
    """

    def __init__(
        self,
        session: Any,
        graph: Graph,
        memory: CacheMemory,
        states: PlaceMemory,
        span: BindingKey,
        transfers: Transfers,
        logits: FloatArray,
    ) -> None:
        self._session = session
        self._names: dict[str, str] = {port.role: port.name for port in graph.inputs}
        with translated("binding the cache"):
            self._binding = session.io_binding()
            self._bind_cache(graph, memory, span)
            self._bind_states(graph, memory.device, states, span)
        self._ports = transfers.ports(self._binding)
        self._logits = next(port.name for port in graph.outputs if port.role == "logits")
        self.set_logits(logits)

    def set_input(self, role: str, array: IntArray) -> None:
        """Bind one small host array; later changes of its values are seen by later runs."""
        with translated(f"binding {role}"):
            self._ports.set_input(self._names[role], role, array)

    def set_named(self, name: str, array: FloatArray) -> None:
        """Bind one host array to the input of this name."""
        with translated(f"binding {name}"):
            self._ports.set_input(name, name, array)

    def set_logits(self, logits: FloatArray) -> None:
        """Bind where the logits go, contiguous host memory."""
        assert logits.flags.c_contiguous
        with translated("binding the logits"):
            self._ports.set_logits(self._logits, logits)

    def run(self, options: Any = None) -> None:
        """Run the graph on what is bound."""
        with translated("running a step"):
            self._ports.run(self._session, options)

    def _bind_cache(self, graph: Graph, memory: CacheMemory, span: BindingKey) -> None:
        for index, (past, present) in enumerate(cache_pairs(graph.inputs, graph.outputs)):
            shape, pointer = memory.shape(index, span.slots), memory.pointer(index, span.first)
            place = (memory.device, 0, element_type(past.dtype), shape, pointer)
            self._binding.bind_input(past.name, *place)
            self._binding.bind_output(present.name, *place)

    def _bind_states(self, graph: Graph, device: str, states: PlaceMemory, span: BindingKey) -> None:
        for index, (past, present) in enumerate(state_pairs(graph.inputs, graph.outputs)):
            about = (device, 0, element_type(past.dtype), (span.slots, *past.shape[1:]))
            self._binding.bind_input(past.name, *about, states.pointer(index, span.reads))
            self._binding.bind_output(present.name, *about, states.pointer(index, span.writes))
