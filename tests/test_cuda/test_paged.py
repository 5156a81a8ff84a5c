"""Keys and values in blocks on the CUDA provider: what a step costs, what is allocated, and whose bytes are where."""

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime
from exporter.export import ExportOptions, export
from quantizer.calibration.data import split
from quantizer.kv_cache.quantize import quantize_cache
from runtime.bundle.bundle import open_bundle
from runtime.errors import DeviceLostError, DeviceMemoryError
from runtime.options import EngineOptions
from runtime.ort.paged.runner import PagedExecutor


@pytest.fixture(scope="module")
def bundle(library: Any, make_checkpoint: Any, make_bundle: Any) -> Path:
    return make_bundle(make_checkpoint(max_position_embeddings=4096), target="cuda", kv="paged")


def opened(bundle: Path, **options: Any) -> "closing[PagedExecutor]":
    return closing(PagedExecutor(open_bundle(bundle), "cuda", **{"slots": 4, **options}))


def fill(executor: PagedExecutor, length: int = 300) -> list[Any]:
    rng = np.random.default_rng(0)
    shape = (2, length, 16)
    for slot in range(executor.slots):
        executor.write(slot, 0, [rng.integers(0, 99, shape).astype(np.float16) for _ in range(4)])
    return [executor.read(slot, 0, length) for slot in range(executor.slots)]


def intact(executor: PagedExecutor, blocks: list[Any]) -> bool:
    pairs = ((executor.read(slot, 0, block[0].shape[1]), block) for slot, block in enumerate(blocks))
    return all(np.array_equal(a, b) for now, before in pairs for a, b in zip(now, before, strict=True))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_is_one_copy_each_way_and_one_wait(cuda: Any, bundle: Path, batch: int) -> None:
    with opened(bundle) as executor:
        ids, lengths = np.ones(batch, np.int64), np.full(batch, 30, np.int32)
        for slot in range(batch):
            executor.prefill(slot, 0, np.arange(30))
        executor.decode(ids, lengths)
        before = [cuda.to_device, cuda.to_host, cuda.waits, cuda.allocations, cuda.on_device]
        executor.decode(ids, lengths + 1)
        after = [cuda.to_device, cuda.to_host, cuda.waits, cuda.allocations, cuda.on_device]
        assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1, 0, 0]


def test_a_shared_beginning_is_held_once_and_copied_when_written(cuda: Any, bundle: Path) -> None:
    with opened(bundle) as executor:
        blocks, free = fill(executor), executor.tables.free
        copied = cuda.on_device
        executor.copy_slot(0, 1, 300)
        assert (cuda.on_device, executor.tables.free) == (copied, free + 2)
        executor.decode(np.ones(2, np.int64), np.array([300, 300], np.int32))
        assert (cuda.on_device - copied, executor.tables.free) == (4, free + 1)  # the last block, of each tensor
        assert intact(executor, [blocks[0], blocks[0], blocks[2], blocks[3]])


def test_a_prompt_of_the_whole_context_runs_beside_many_slots(cuda: Any, bundle: Path) -> None:
    budget = 17 * 256 * open_bundle(bundle).manifest.kv_cache.bytes_per_token
    with runtime.LLM(bundle, options=EngineOptions(max_concurrency=64, kv_memory=budget)) as llm:
        params = runtime.SamplingParams(max_tokens=4, ignore_eos=True)
        answers = llm.generate([[7] * 4000, *([5, 6, n] for n in range(20))], params)
        assert [len(answer.token_ids) for answer in answers] == [4] * 21


def test_blocks_are_allocated_once_and_never_more_than_the_budget(cuda: Any, bundle: Path) -> None:
    budget = 8 * 256 * open_bundle(bundle).manifest.kv_cache.bytes_per_token
    with opened(bundle, slots=16, kv_memory=budget) as executor:
        assert executor.memory.allocated <= budget
        executor.prefill(0, 0, np.arange(200))  # the arena has what a step needs
        live, allocated = cuda.live, cuda.allocations
        cuda.forget_peak()
        for slot in range(7):
            executor.prefill(slot, 0, np.arange(200))
        with pytest.raises(DeviceMemoryError, match="Raise --kv-memory"):
            executor.prefill(0, 0, np.arange(700))
        assert (cuda.live, cuda.peak, cuda.allocations) == (live, live, allocated)


@pytest.mark.parametrize("call", ["launch", "copy", "sync"])
def test_a_step_that_fails_leaves_the_bytes_of_all_slots(cuda: Any, bundle: Path, call: str) -> None:
    for at in itertools.count(1, 7):
        with opened(bundle) as executor:
            executor.decode(np.ones(1, np.int64), np.zeros(1, np.int32))
            blocks = fill(executor)
            cuda.fail(call, at)
            try:
                executor.decode(np.ones(4, np.int64), np.full(4, 300, np.int32))
            except DeviceLostError:
                cuda.fail()
                assert intact(executor, blocks)
                continue
            cuda.fail()
            assert at > 1
            return


@pytest.mark.parametrize("kind", ["float", "int8"])
def test_a_bundle_for_the_cpu_is_retargeted_to_blocks(cuda: Any, tiny_bundle: Path, tmp_path: Path, kind: str) -> None:
    source = tiny_bundle
    if kind == "int8":
        source = tmp_path / "int8"
        quantize_cache(tiny_bundle, source, 8, split("random", np.random.default_rng(0).integers(4, 320, (6, 64))))
    export(source, tmp_path / "paged", ExportOptions(target="cuda", kv="paged"))
    manifest = open_bundle(tmp_path / "paged").manifest
    assert manifest.kv_cache.dtype == ("int8" if kind == "int8" else "float16")
    with runtime.LLM(tmp_path / "paged", options=EngineOptions(max_concurrency=2)) as llm:
        answer = llm.generate([[5, 6, 7], [8] * 90], runtime.SamplingParams(max_tokens=9, ignore_eos=True))
    assert [len(one.token_ids) for one in answer] == [9, 9]
