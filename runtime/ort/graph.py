"""A loaded graph and its steps: most inputs are bound once, only small ones change between two runs."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..adapters.fitting import FittedAdapter
from ..bundle.manifest import Graph
from ..errors import ExecutionError
from .adapter_inputs import AdapterInputs, BoundAdapters
from .binding import Binding, BindingKey, FloatArray, IntArray
from .memory import StepMemory
from .providers import ProviderName
from .runner_protocol import StepInterrupted
from .session import check_session, onnxruntime, open_session, require_query_seqlens


class GraphSession:
    """An ONNX Runtime session with the tensor specs of its graph.

    `path` is the graph's file where it is not the bundle's own: see prepared.py.
    """

    def __init__(
        self,
        folder: Path,
        graph: Graph,
        provider: ProviderName,
        threads: int | None,
        stream: int | None = None,
        path: Path | None = None,
        profile: Path | None = None,
        adapters: Sequence[FittedAdapter] = (),
    ) -> None:
        self.graph = graph
        roles = {port.role for port in graph.inputs}
        self.adapters = AdapterInputs(graph, adapters) if "lora_mask" in roles else None
        self.has_index, self.has_counts = "logits_index" in roles, "query_seqlens" in roles
        if self.has_counts:
            require_query_seqlens(folder)
        self.session = open_session(
            path or folder / graph.file, provider, threads, profile=profile, stream=stream, as_stored=path is not None
        )
        check_session(self.session, graph)


class BoundStep:
    """A binding with its small inputs, which are bound once and only overwritten between two runs."""

    def __init__(self, loaded: GraphSession, memory: StepMemory, span: BindingKey, logits: FloatArray) -> None:
        self.logits, count = logits, span.slots
        self._binding = Binding(
            loaded.session, loaded.graph, memory.slots, memory.states, span, memory.transfers, logits
        )
        self.inputs: dict[str, IntArray] = {
            "input_ids": np.zeros((count, 1), np.int64),
            "seqlens_k": np.zeros(count, np.int32),
            "total_sequence_length": np.zeros((), np.int32),
        }
        if loaded.has_index:
            self.inputs["logits_index"] = np.stack([np.arange(count), np.zeros(count, np.int64)], axis=1)
        if loaded.has_counts:
            self.inputs["query_seqlens"] = np.ones(count, np.int32)
        for role, array in self.inputs.items():
            self._binding.set_input(role, array)
        self._adapters = BoundAdapters(loaded.adapters, count) if loaded.adapters else None

    def set_lengths(self, longest: int, lengths: IntArray | None = None) -> None:
        """Tell the attention that slots hold `lengths` tokens before this step, `longest` the most after it."""
        self.inputs["seqlens_k"][:] = longest - 1 if lengths is None else lengths
        self.inputs["total_sequence_length"][...] = longest

    def set_ids(self, ids: IntArray) -> None:
        """Bind `ids` [1, n] and ask for the logits after the last of them."""
        self.inputs["input_ids"] = ids
        self._binding.set_input("input_ids", ids)
        self.inputs["logits_index"][:1, 1] = ids.shape[1] - 1
        if "query_seqlens" in self.inputs:
            self.inputs["query_seqlens"][:] = ids.shape[1]

    def set_chunks(self, pasts: IntArray, chunks: Sequence[IntArray]) -> None:
        """Bind a chunk for each slot, behind its past, padded on the right; ask for the logits after their last ids."""
        counts = np.array([len(chunk) for chunk in chunks])
        ids = np.zeros((len(chunks), counts.max()), np.int64)
        for row, chunk in zip(ids, chunks, strict=True):
            row[: len(chunk)] = chunk
        self.inputs["input_ids"] = ids
        self._binding.set_input("input_ids", ids)
        self.inputs["logits_index"][:, 1] = counts - 1
        self.inputs["query_seqlens"][:] = counts
        self.inputs["seqlens_k"][:] = pasts + counts - 1
        self.inputs["total_sequence_length"][...] = max((pasts + counts).max(), ids.shape[1])

    def want_all(self, logits: FloatArray) -> None:
        """Ask for the logits after each of the ids, into `logits` [n, vocab]."""
        positions = np.arange(len(logits))
        self.inputs["logits_index"] = np.stack([np.zeros_like(positions), positions], axis=1)
        self._binding.set_input("logits_index", self.inputs["logits_index"])
        self._binding.set_logits(logits)
        self.logits = logits

    def run(self, options: Any) -> None:
        """Run what is bound."""
        if self._adapters:
            self._adapters.bind(self._binding)
        self._binding.run(options)


class Interruptible:
    """`with` this around a run; `interrupt` from another thread then stops exactly that run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._options: Any = None

    def __enter__(self) -> Any:
        with self._lock:
            self._options = onnxruntime().RunOptions()
            return self._options

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self._lock:
            options, self._options = self._options, None
        if isinstance(error, ExecutionError) and options.terminate:
            raise StepInterrupted from error

    def interrupt(self) -> None:
        with self._lock:
            if self._options is not None:
                self._options.terminate = True
