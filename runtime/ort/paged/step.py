"""One step of the paged graph: chunks of several sequences, packed, over blocks that are bound once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...bundle.tensor_specs import cache_pairs
from ...cache.block_tables import Table
from ...cache.cuda_blocks import BlockMemory
from ..graph import GraphSession
from ..session import translated
from ..transfers import FloatArray, IntArray, Transfers, element_type


@dataclass(frozen=True)
class PackedChunks:
    """What a step computes.

    Args:
        rows: int32 `[sequences, blocks]`, the block table of the sequences.
        pasts: tokens of each sequence before the step.
        chunks: ids of each sequence, put behind its past.
        wanted: positions among the packed tokens whose logits are wanted.
    """

    rows: Table
    pasts: Sequence[int]
    chunks: Sequence[IntArray]
    wanted: IntArray


class PagedStep:
    """A binding of the paged graph; every run may have other sequences and sizes.

    Args:
        loaded: the session of paged.onnx.
        memory: the blocks of keys and values.
        transfers: how inputs get there and logits come back.
    """

    def __init__(self, loaded: GraphSession, memory: BlockMemory, transfers: Transfers) -> None:
        self._session, graph = loaded.session, loaded.graph
        self._names: dict[str, str] = {port.role: port.name for port in graph.inputs}
        self._logits_name = next(port.name for port in graph.outputs if port.role == "logits")
        self.inputs: dict[str, IntArray] = {}
        with translated("binding the cache"):
            binding = self._session.io_binding()
            for index, (past, present) in enumerate(cache_pairs(graph.inputs, graph.outputs)):
                place = (memory.device, 0, element_type(past.dtype), memory.shape(index), memory.pointer(index))
                binding.bind_input(past.name, *place)
                binding.bind_output(present.name, *place)
        self._ports = transfers.ports(binding)
        self.logits: FloatArray = np.zeros((0, 0), np.float32)

    def prepare(self, step: PackedChunks) -> None:
        """Bind the inputs of a step."""
        counts = np.array([len(chunk) for chunk in step.chunks], np.int32)
        pasts = np.array(step.pasts, np.int32)
        inputs: dict[str, Any] = {
            "input_ids": np.concatenate(step.chunks).astype(np.int64)[None],
            "cumulative_sequence_length": np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            "past_seqlens": pasts,
            "block_table": np.ascontiguousarray(step.rows, np.int32),
            "attention_metadata": np.array([counts.max(), (pasts + counts).max()], np.int32),
            "logits_index": np.stack([np.zeros_like(step.wanted), step.wanted], axis=1).astype(np.int64),
        }
        if "position_ids" in self._names:
            starts = np.repeat(pasts - inputs["cumulative_sequence_length"][:-1], counts)
            inputs["position_ids"] = (starts + np.arange(counts.sum()))[None].astype(np.int64)
        if "last_positions" in self._names:
            inputs["last_positions"] = np.repeat(pasts + counts - 1, counts)[None].astype(np.int64)
        for role, array in inputs.items():
            self.set_input(role, array)

    def set_input(self, role: str, array: IntArray) -> None:
        """Bind a small host array; later changes of its values are seen by later runs."""
        self.inputs[role] = array
        with translated(f"binding {role}"):
            self._ports.set_input(self._names[role], role, array)

    def set_logits(self, logits: FloatArray) -> None:
        """Bind where the logits `[wanted, vocab]` go."""
        self.logits = logits
        with translated("binding the logits"):
            self._ports.set_logits(self._logits_name, logits)

    def run(self, options: Any = None) -> None:
        """Run what is bound."""
        with translated("running a step"):
            self._ports.run(self._session, options)


class PagedDecode:
    """A step of one token for each of `count` sequences: bound once, with only values written between two runs."""

    def __init__(self, step: PagedStep, count: int, blocks: int, logits: FloatArray) -> None:
        self._step, self.blocks = step, blocks
        ones = [np.zeros(1, np.int64)] * count
        step.prepare(PackedChunks(np.zeros((count, blocks), np.int32), [0] * count, ones, np.arange(count)))
        step.set_logits(logits)

    def run(self, ids: IntArray, lengths: IntArray, rows: Table) -> FloatArray:
        """Put `ids[r]` behind the `lengths[r]` tokens of row r; returns the logits `[count, vocab]`."""
        inputs = self._step.inputs
        inputs["input_ids"][0] = ids
        inputs["past_seqlens"][:] = lengths
        inputs["block_table"][:] = rows
        inputs["attention_metadata"][1] = lengths.max() + 1
        for role in ("position_ids", "last_positions"):
            if role in inputs:
                inputs[role][0] = lengths
        self._step.run()
        return self._step.logits
