"""One step over cache rows: what a row computes depends on that row alone."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime.bundle.bundle import open_bundle
from runtime.errors import BundleError, ExecutionError
from runtime.ort.executor import OnnxExecutor
from runtime.ort.runner_protocol import StepInterrupted
from runtime.ort.session import operator_has_input

Prompt = list[int]


@pytest.fixture(params=["one session", "two sessions"])
def executor(tiny_bundle: Path, request: pytest.FixtureRequest) -> Iterator[OnnxExecutor]:
    executor = OnnxExecutor(open_bundle(tiny_bundle), slots=8, threads=1, two_sessions=request.param == "two sessions")
    yield executor
    executor.close()


def ids(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 320, length)


def prefill(executor: OnnxExecutor, slot: int, tokens: np.ndarray, chunk: int = 1000) -> np.ndarray:
    """As the scheduler does it: no last chunk of a single token."""
    start = 0
    while start < len(tokens):
        stop = len(tokens) if len(tokens) - start - chunk <= 1 else start + chunk
        logits = executor.prefill(slot, start, tokens[start:stop])
        start = stop
    return logits.copy()


@pytest.mark.parametrize("length", [96, 97, 129, 163])  # 97 and 129 leave a lonely query row: 2·head_dim is 32
@pytest.mark.parametrize("chunk", [2, 7, 33, 48, 65])
def test_a_prompt_in_chunks_is_bitwise_the_prompt_in_one_piece(executor: OnnxExecutor, length: int, chunk: int) -> None:
    tokens = ids(0, length)
    whole = prefill(executor, 0, tokens)
    assert np.array_equal(prefill(executor, 1, tokens, chunk), whole)
    assert all(np.array_equal(a[0, :, :length], a[1, :, :length]) for a in executor.memory.arrays)


def test_decode_in_a_batch_is_bitwise_decode_alone(executor: OnnxExecutor) -> None:
    lengths = np.array([5, 90, 17, 200, 2, 33, 64, 128])
    for slot, length in enumerate(lengths):
        prefill(executor, slot, ids(slot, length))
    together = executor.decode(np.arange(8), lengths).copy()
    for slot, length in enumerate(lengths):
        executor.copy_slot(slot, 0, length)
        assert np.array_equal(executor.decode(np.array([slot]), lengths[slot : slot + 1])[0], together[slot])


def test_bytes_beyond_the_length_are_never_read(executor: OnnxExecutor) -> None:
    tokens = ids(1, 20)
    clean = prefill(executor, 0, tokens)
    after = executor.decode(np.array([7]), np.array([20]))[0].copy()
    for array in executor.memory.arrays:
        array[1] = np.nan
    assert np.array_equal(prefill(executor, 1, tokens), clean)
    executor.copy_slot(1, 0, 20)
    assert np.array_equal(executor.decode(np.array([7]), np.array([20]))[0], after)


@pytest.fixture
def batching(make_bundle: Callable[..., Path], tiny_checkpoint: Path) -> Iterator[OnnxExecutor]:
    if not operator_has_input("GroupQueryAttention", "query_seqlens"):
        pytest.skip("needs ONNX Runtime 1.32")
    executor = OnnxExecutor(open_bundle(make_bundle(tiny_checkpoint, target_ort="1.32")), slots=8, threads=1)
    yield executor
    executor.close()


@pytest.mark.parametrize("seed", range(6))  # 33 and 97 leave a lonely query row; 200 has no room for the padding
def test_chunks_of_several_rows_are_bitwise_those_of_each(batching: OnnxExecutor, seed: int) -> None:
    draw = np.random.default_rng(seed)
    pasts, lengths = draw.choice([0, 2, 40, 65, 200], 4), draw.choice([2, 5, 33, 56, 97], 4)
    pasts = np.where(pasts + lengths > 256, 0, pasts)
    tokens = [ids(slot, past + length) for slot, (past, length) in enumerate(zip(pasts, lengths, strict=True))]
    for slot, past in enumerate(pasts):
        if past:
            batching.prefill(3 + slot, 0, tokens[slot][:past])
    together = batching.prefill_batch(3, pasts, [t[past:] for t, past in zip(tokens, pasts, strict=True)]).copy()
    for slot, past in enumerate(pasts):
        batching.copy_slot(3 + slot, 0, past)
        assert np.array_equal(batching.prefill(0, past, tokens[slot][past:]), together[slot])
        assert all(np.array_equal(*array[[0, 3 + slot], :, : len(tokens[slot])]) for array in batching.memory.arrays)


def test_decoding_by_a_graph_that_counts_ids_is_bitwise_the_same(
    executor: OnnxExecutor, batching: OnnxExecutor
) -> None:
    lengths = np.array([5, 90, 17])
    for slot, length in enumerate(lengths):
        assert np.array_equal(prefill(batching, slot, ids(slot, length)), prefill(executor, slot, ids(slot, length)))
    assert np.array_equal(batching.decode(np.arange(3), lengths), executor.decode(np.arange(3), lengths))


def test_an_older_onnxruntime_is_told_both_ways_out(
    make_bundle: Callable[..., Path], tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(make_bundle(tiny_checkpoint, target_ort="1.32"))
    monkeypatch.setattr("runtime.ort.session.operator_has_input", lambda *_: False)
    with pytest.raises(BundleError, match=r"Upgrade ONNX Runtime, or export the model again with --target-ort 1\.31"):
        OnnxExecutor(bundle, slots=1)


def test_a_released_row_can_be_used_again(executor: OnnxExecutor) -> None:
    tokens = ids(2, 60)
    first = prefill(executor, 3, tokens)
    executor.free_slot(3)
    assert not executor.memory.arrays[0][3].any()
    assert np.array_equal(prefill(executor, 3, tokens), first)


def test_release_keeps_what_it_is_told_to_keep(executor: OnnxExecutor) -> None:
    prefill(executor, 2, ids(3, 200))
    kept = [array[2, :, :50].copy() for array in executor.memory.arrays]
    executor.free_slot(2, keep=50)
    assert all(np.array_equal(array[2, :, :50], old) for array, old in zip(executor.memory.arrays, kept, strict=True))
    assert not executor.memory.arrays[0][2, :, 128:].any()


def test_a_block_read_and_written_elsewhere_continues_bitwise(executor: OnnxExecutor) -> None:
    tokens = ids(4, 100)
    whole = prefill(executor, 0, tokens)
    executor.write(5, 0, executor.read(0, 0, 40))
    executor.write(5, 40, executor.read(0, 40, 60))
    assert np.array_equal(executor.prefill(5, 60, tokens[60:]), whole)


def test_a_step_beyond_the_context_is_refused_before_it_runs(executor: OnnxExecutor) -> None:
    with pytest.raises(ExecutionError, match="257 tokens in one slot, and a slot holds 256"):
        executor.prefill(0, 0, ids(5, 257))
    executor.prefill(0, 0, ids(5, 256))


def test_interrupt_stops_the_running_prefill_only(executor: OnnxExecutor) -> None:
    expected = prefill(executor, 0, ids(6, 250))
    executor.interrupt()  # nothing runs: nothing happens
    stopped = 0
    for _ in range(200):
        timer = threading.Timer(0.0005, executor.interrupt)
        timer.start()
        try:
            executor.prefill(1, 0, ids(6, 250))
        except StepInterrupted:
            stopped += 1
        timer.join()
        if stopped:
            break
    assert stopped
    assert np.array_equal(prefill(executor, 1, ids(6, 250)), expected)


def test_the_synthetic_model_says_what_its_formula_says(
    synthetic_bundle: Path, continuation: Callable[[Prompt, int], Prompt]
) -> None:
    executor = OnnxExecutor(open_bundle(synthetic_bundle), slots=3, threads=1)
    prompts = [[5, 9, 200], [7] * 30, [319]]
    answers = [[int(executor.prefill(slot, 0, np.array(prompt)).argmax())] for slot, prompt in enumerate(prompts)]
    for step in range(40):
        lengths = np.array([len(prompt) + step for prompt in prompts])
        logits = executor.decode(np.array([answer[-1] for answer in answers]), lengths)
        for answer, token in zip(answers, logits.argmax(axis=1), strict=True):
            answer.append(int(token))
    assert answers == [continuation(prompt, 41) for prompt in prompts]


def test_without_pages_rows_grow_and_the_bits_are_the_same(
    executor: OnnxExecutor, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.ort.memory.pages_supported", lambda: False)
    monkeypatch.setattr("runtime.cache.host.GROWTH_BUCKET", 16)
    growing = OnnxExecutor(open_bundle(tiny_bundle), slots=2, threads=1)
    tokens = ids(7, 150)
    for length in (10, 60, 150):  # grows twice on the way
        assert np.array_equal(prefill(growing, 1, tokens[:length], 40), prefill(executor, 1, tokens[:length], 40))
    assert growing.memory.generation >= 3
