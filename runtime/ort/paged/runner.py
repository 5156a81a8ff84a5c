"""Steps over keys and values in blocks: a ModelRunner on paged.onnx, for prefill, decode and both at once.

A slot is a row of a block table. A long slot takes as many blocks as it needs, whatever the others have; slots that
begin alike hold the same blocks, and copying a slot copies no keys.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...bundle.bundle import Bundle
from ...bundle.manifest import Manifest
from ...cache.block_tables import BlockTables
from ...cache.cuda_blocks import BlockMemory
from ...cache.host import Array, CacheTensor
from ...errors import OptionError
from ..binding import FloatArray, IntArray
from ..graph import GraphSession, Interruptible
from ..memory import cache_tensors, closing_on_error, gpu_budget, open_device, zeros_of
from ..providers import ProviderName
from ..runner_protocol import MAX_SCORED
from ..transfers import CudaTransfers, HostTransfers, Transfers
from .step import PackedChunks, PagedDecode, PagedStep

NewBlocks = Callable[[list[CacheTensor], int, int], BlockMemory]  # tensors, blocks, tokens of a block
_SPARE = 1  # a block that no budget counts: a copy on write may need one before another is given back


class PagedExecutor:
    """ModelRunner over a bundle's paged graph.

    Args:
        bundle: the opened bundle; its manifest has `graphs.paged`.
        provider: where it runs.
        slots: sequences that may be computed together.
        context: most tokens of one slot; None is the model's context length.
        threads: threads inside one step, on the CPU.
        kv_memory: bytes for keys and values; None is a share of what is free on the GPU.
        new_blocks: makes the memory of the blocks; None is the GPU's.

    Attributes:
        block_tokens: tokens of a block: what memory is counted in.
        kv_budget: bytes of all blocks.
        tables: which blocks each slot holds.
    """

    def __init__(
        self,
        bundle: Bundle,
        provider: ProviderName = "cuda",
        *,
        slots: int,
        context: int | None = None,
        threads: int | None = None,
        kv_memory: int | None = None,
        new_blocks: NewBlocks | None = None,
    ) -> None:
        manifest, graph = bundle.manifest, bundle.manifest.graphs.paged
        assert graph is not None
        self.slots, self.vocab_size = slots, manifest.architecture.vocab_size
        self.bytes_per_token = manifest.kv_cache.bytes_per_token
        self.can_give_all_logits = self.can_batch_prefill = True
        tensors = cache_tensors(manifest)
        self.block_tokens = _block_tokens(manifest)
        context = min(context or manifest.architecture.context_length, manifest.architecture.context_length)
        self._device = open_device(provider)
        with closing_on_error(self._device):
            stream = None if self._device is None else self._device.stream
            self._session = GraphSession(bundle.folder, graph, provider, threads, stream)
            blocks = self._affordable(context, kv_memory)
            self.capacity = min(context, blocks * self.block_tokens)
            self.kv_budget = blocks * self.block_tokens * self.bytes_per_token
            self.memory = (new_blocks or self._gpu_blocks)(tensors, blocks + _SPARE, self.block_tokens)
            self._transfers: Transfers = HostTransfers() if self._device is None else CudaTransfers(self._device)
            self._logits = zeros_of(self._transfers, manifest, max(slots, MAX_SCORED))
        self.tables = BlockTables(slots, blocks + _SPARE, self.block_tokens, self.capacity)
        self._step = PagedStep(self._session, self.memory, self._transfers)
        self._decodes: dict[int, PagedDecode] = {}  # by batch size
        self._interruptible = Interruptible()

    def _affordable(self, context: int, kv_memory: int | None) -> int:
        """Blocks that the budget pays for, and no more than all slots can fill."""
        block_bytes = self.block_tokens * self.bytes_per_token
        most = self.slots * -(-context // self.block_tokens)
        if self._device is not None:
            budget = gpu_budget(self._device.free_memory(), kv_memory) - _SPARE * block_bytes
        else:
            budget = kv_memory if kv_memory is not None else most * block_bytes
        if budget < block_bytes:
            raise OptionError(
                f"{max(0, budget):,} bytes do not hold one block of {self.block_tokens} tokens of this model, which "
                f"takes {block_bytes:,}, beside one to spare. Raise --kv-memory."
            )
        return min(most, budget // block_bytes)

    def _gpu_blocks(self, tensors: list[CacheTensor], blocks: int, block_tokens: int) -> BlockMemory:
        from ...cache.cuda_blocks import CudaBlocks

        return CudaBlocks(tensors, blocks, block_tokens, self._device)

    def prefill(self, slot: int, past: int, ids: IntArray) -> FloatArray:
        """Put `ids` [n] at positions `past …` of the slot; returns the logits [vocab] after the last of them."""
        logits: FloatArray = self._run([slot], [past], [ids], np.array([len(ids) - 1]), stoppable=True)[0]
        return logits

    def prefill_without_logits(self, slot: int, past: int, ids: IntArray) -> None:
        """Put `ids` [n] at positions `past …` of the slot, without computing the head for any of them."""
        self._run([slot], [past], [ids], np.zeros(0, np.int64), stoppable=True)

    def prefill_batch(self, first: int, pasts: Sequence[int], chunks: Sequence[IntArray]) -> FloatArray:
        """Put `chunks[i]` at positions `pasts[i] …` of slot `first + i`, together; returns the logits [n, vocab]."""
        ends = np.cumsum([len(chunk) for chunk in chunks]) - 1
        return self._run(range(first, first + len(chunks)), pasts, chunks, ends)

    def all_logits(self, slot: int, past: int, ids: IntArray) -> FloatArray:
        """Put `ids` [n] at positions `past …` of the slot; returns the logits [n, vocab] after each of them."""
        assert len(ids) <= MAX_SCORED
        return self._run([slot], [past], [ids], np.arange(len(ids)))

    def decode(self, ids: IntArray, lengths: IntArray) -> FloatArray:
        """Put `ids[r]` at position `lengths[r]` of each slot r = 0 … n-1; returns logits [n, vocab]."""
        count, longest = len(ids), int(lengths.max()) + 1
        self._own(range(count), lengths.tolist(), [1] * count)
        blocks = self._width(longest)
        step = self._decodes.get(count)
        if step is None or step.blocks != blocks:
            bound = PagedStep(self._session, self.memory, self._transfers)
            step = self._decodes[count] = PagedDecode(bound, count, blocks, self._logits[:count])
        return step.run(ids, lengths, self.tables.rows[:count, :blocks])

    def _run(
        self, slots: Sequence[int], pasts: Sequence[int], chunks: Sequence[IntArray], wanted: IntArray,
        *, stoppable: bool = False,
    ) -> FloatArray:  # fmt: skip
        """One run of chunks of any sequences; returns the logits of the wanted tokens."""
        counts = [len(chunk) for chunk in chunks]
        self._own(slots, pasts, counts)
        width = self._width(max(past + count for past, count in zip(pasts, counts, strict=True)))
        self._step.prepare(PackedChunks(self.tables.rows[list(slots), :width], pasts, chunks, wanted))
        self._step.set_logits(self._logits[: len(wanted)])
        if not stoppable:
            self._step.run()
            return self._step.logits
        with self._interruptible as options:
            self._step.run(options)
        return self._step.logits

    def _own(self, slots: Sequence[int], pasts: Sequence[int], counts: Sequence[int]) -> None:
        """Give every slot blocks of its own for what the step writes."""
        for slot, past, count in zip(slots, pasts, counts, strict=True):
            if copies := self.tables.write(slot, past, past + count):
                self.memory.copy(copies)

    def _width(self, longest: int) -> int:
        """Columns of the table: powers of two, so that few shapes are bound."""
        blocks = self.tables.blocks_of(longest)
        return min(1 << (blocks - 1).bit_length(), int(self.tables.rows.shape[1]))

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Let the target hold the first `length` tokens of the source; nothing is copied."""
        self.tables.share(source, target, length)

    def free_slot(self, slot: int, keep: int = 0) -> None:
        """Let go of the slot's blocks behind its first `keep` tokens."""
        self.tables.keep(slot, keep)

    def read(self, slot: int, start: int, stop: int) -> list[Array]:
        """Copies of the keys and values at positions `[start, stop)`, one array per cache tensor."""
        return self.memory.read(self.tables.held(slot), start, stop)

    def write(self, slot: int, start: int, block: list[Array]) -> None:
        """Put back what `read` returned, at position `start`."""
        self._own([slot], [start], [block[0].shape[1]])
        self.memory.write(self.tables.held(slot), start, block)

    def interrupt(self) -> None:
        """Make a running `prefill` raise StepInterrupted between two kernels."""
        self._interruptible.interrupt()

    def close(self) -> None:
        """Release the session and the memory; the executor cannot be used afterwards."""
        self._decodes.clear()
        del self._step, self._session
        self.memory.close()
        if self._device is not None:
            self._device.close()


def _block_tokens(manifest: Manifest) -> int:
    graph: Any = manifest.graphs.paged
    sizes: list[int] = [int(port.shape[1]) for port in graph.inputs if port.role == "past_key"]
    return sizes[0]
