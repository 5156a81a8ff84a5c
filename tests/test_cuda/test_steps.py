"""What a step costs on the CUDA provider, and that the bytes of the cache are where they belong."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.bundle.bundle import open_bundle
from runtime.errors import DeviceLostError, DeviceMemoryError, OptionError
from runtime.ort.executor import OnnxExecutor

Bundles = Callable[..., Path]


def opened(bundle: Path, **options: Any) -> "closing[OnnxExecutor]":
    return closing(OnnxExecutor(open_bundle(bundle), "cuda", **{"slots": 4, **options}))


@pytest.fixture(params=["float16", "bfloat16"])
def executor(cuda: Any, cuda_bundle: Bundles, request: pytest.FixtureRequest) -> Iterator[OnnxExecutor]:
    with opened(cuda_bundle(request.param)) as executor:
        yield executor


def fill(executor: OnnxExecutor, length: int = 40) -> list[Any]:
    """Write noise into every slot; returns it by slot."""
    rng = np.random.default_rng(0)
    for slot in range(executor.slots):
        block = [rng.integers(0, 99, part.shape).astype(part.dtype) for part in executor.read(slot, 0, length)]
        executor.write(slot, 0, block)
    return [executor.read(slot, 0, length) for slot in range(executor.slots)]


def intact(executor: OnnxExecutor, blocks: list[Any], length: int = 40) -> bool:
    return all(
        np.array_equal(now, before)
        for slot, block in enumerate(blocks)
        for now, before in zip(executor.read(slot, 0, length), block, strict=True)
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_a_decode_step_is_one_copy_each_way_and_one_wait(executor: OnnxExecutor, cuda: Any, batch: int) -> None:
    ids, lengths = np.ones(batch, np.int64), np.full(batch, 30, np.int32)
    executor.decode(ids, lengths)
    before = [cuda.to_device, cuda.to_host, cuda.waits, cuda.allocations]
    logits = executor.decode(ids, lengths + 1)
    assert [cuda.to_device, cuda.to_host, cuda.waits, cuda.allocations] == [
        n + k for n, k in zip(before, (1, 1, 1, 0), strict=True)
    ]
    assert logits.shape == (batch, executor.vocab_size)


def test_prefill_in_chunks_and_all_logits_give_rows(executor: OnnxExecutor) -> None:
    executor.prefill_without_logits(1, 0, np.arange(20))
    assert executor.prefill(1, 20, np.arange(7)).shape == (executor.vocab_size,)
    assert executor.all_logits(1, 27, np.arange(5)).shape == (5, executor.vocab_size)


def test_what_is_written_is_read_back_and_copied(executor: OnnxExecutor) -> None:
    blocks = fill(executor)
    executor.copy_slot(2, 0, 40)
    assert intact(executor, [blocks[2], blocks[1], blocks[2], blocks[3]])


def test_a_growth_that_fails_at_any_allocation_leaves_all_rows(
    cuda: Any, make_checkpoint: Any, make_bundle: Any
) -> None:
    bundle = make_bundle(make_checkpoint(max_position_embeddings=2048), target="cuda")
    for at in itertools.count(1):
        with opened(bundle) as executor:
            blocks = fill(executor)
            cuda.fail("cudaMalloc", at)
            try:
                executor.memory.reserve(1000)
            except DeviceMemoryError:
                cuda.fail()
                assert intact(executor, blocks)
                executor.decode(np.ones(4, np.int64), np.full(4, 40, np.int32))  # on addresses that are alive
                continue
            assert (at - 1, intact(executor, blocks)) == (4, True)
            return


@pytest.mark.parametrize(
    ("call", "kind"), [("launch", DeviceLostError), ("copy", DeviceLostError), ("sync", DeviceLostError)]
)
def test_a_gpu_that_breaks_is_lost(executor: OnnxExecutor, cuda: Any, call: str, kind: type) -> None:
    executor.decode(np.ones(2, np.int64), np.full(2, 30, np.int32))
    cuda.fail(call)
    with pytest.raises(kind, match=r"restart"):
        executor.decode(np.ones(2, np.int64), np.full(2, 31, np.int32))
    cuda.fail()


def test_loading_fails_whole_at_every_allocation(cuda: Any, cuda_bundle: Bundles) -> None:
    live, at = cuda.live, 1
    while failed := _load_fails(cuda, cuda_bundle(), at):
        assert "out of memory" in failed or "--kv-memory" in failed
        assert cuda.live == live
        at += 1
    assert at > 10


def _load_fails(cuda: Any, bundle: Path, at: int) -> str:
    cuda.fail("cudaMalloc", at)
    try:
        with opened(bundle):
            return ""
    except DeviceMemoryError as error:
        return str(error)
    finally:
        cuda.fail()


def test_the_budget_bounds_what_is_allocated(cuda: Any, make_checkpoint: Any, make_bundle: Any) -> None:
    bundle = make_bundle(make_checkpoint(max_position_embeddings=4096), target="cuda")
    with opened(bundle, slots=8, kv_memory=2 << 20) as executor:
        before = cuda.live - executor.memory.allocated
        cuda.forget_peak()
        executor.memory.reserve(executor.capacity)
        assert executor.capacity < 1000
        assert executor.memory.allocated <= 2 << 20
        assert cuda.peak - before <= (2 << 20) + (64 << 10)
    with pytest.raises(OptionError, match="Raise --kv-memory"):
        OnnxExecutor(open_bundle(bundle), "cuda", slots=8, kv_memory=1000)
