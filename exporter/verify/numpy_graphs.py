"""Run a bundle's two graphs step by step with numpy arrays: slow, simple, and only for checking them."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.bundle.manifest import Manifest, TensorSpec
from runtime.errors import VerificationError

Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]


class NumpyRunner:
    """One sequence through prefill and decode, its cache held in numpy arrays `[1, kv_heads, capacity, head_dim]`."""

    def __init__(self, folder: Path, manifest: Manifest, capacity: int) -> None:
        self.manifest = manifest
        self.capacity = capacity
        self.folder = folder
        self.loaded: tuple[str, Any] = ("", None)
        self.length = 0
        self.cache: dict[str, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Forget the sequence."""
        self.length = 0
        pasts = [port for port in self.manifest.graphs.prefill.inputs if port.role.startswith("past")]
        self.cache = {port.name: np.zeros(self._sizes(port), port.dtype) for port in pasts}

    def _sizes(self, port: TensorSpec) -> list[Any]:
        """Of one sequence's keys, values or state."""
        return [1, *(self.capacity if size == "capacity" else size for size in port.shape[1:])]

    def prefill(self, ids: Ids) -> Logits:
        """Append `ids` `[n]` with the prefill graph; logits `[V]` of the last one."""
        return self._run("prefill", ids)

    def decode(self, token: int) -> Logits:
        """Append one token with the decode graph; its logits `[V]`."""
        return self._run("decode", np.array([token]))

    def _run(self, graph: str, ids: Ids) -> Logits:
        total = self.length + len(ids)
        feeds = {
            "input_ids": ids.astype(np.int64)[None],
            "seqlens_k": np.array([total - 1], np.int32),
            "total_sequence_length": np.array(total, np.int32),
            **self.cache,
        }
        if graph == "prefill":
            feeds["logits_index"] = np.array([[0, len(ids) - 1]], np.int64)
        if graph == "prefill" and any(port.role == "query_seqlens" for port in self.manifest.graphs.prefill.inputs):
            feeds["query_seqlens"] = np.array([len(ids)], np.int32)
        logits, *presents = self._session(graph).run(None, feeds)
        self.cache = dict(zip(self.cache, presents, strict=True))
        self.length = total
        result: Logits = logits[0]
        return result

    def _session(self, graph: str) -> Any:
        """The session of a graph. Only one is held at a time: each maps all weights."""
        if self.loaded[0] != graph:
            self.loaded = ("", None)
            self.loaded = (graph, open_session(self.folder / getattr(self.manifest.graphs, graph).file))
        return self.loaded[1]


def open_session(path: Path) -> Any:
    """A session for a few steps on the CPU.

    Raises:
        VerificationError: ONNX Runtime refuses the graph.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    # Packed copies of the weights would double the memory, for a handful of steps; so would an arena that keeps
    # what was needed once, at twice its size.
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises a dozen unrelated types here
        raise VerificationError(f"{path.name} does not load in ONNX Runtime: {error}") from error
