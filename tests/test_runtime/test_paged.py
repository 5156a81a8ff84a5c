"""The paged executor on the CPU, with PagedAttention replaced by standard operators: the same numbers as dense rows."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paged_reference import HostBlocks, paged_on_cpu

import runtime
from runtime.bundle.bundle import open_bundle
from runtime.errors import OptionError, UnsupportedError
from runtime.options import EngineOptions
from runtime.ort.executor import OnnxExecutor
from runtime.ort.paged.runner import PagedExecutor


@pytest.fixture(scope="module")
def paged(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paged_on_cpu(tiny_bundle, tmp_path_factory.mktemp("paged") / "bundle")


def opened(bundle: Path, **options: Any) -> PagedExecutor:
    return PagedExecutor(open_bundle(bundle), "cpu", **{"slots": 4, "new_blocks": HostBlocks, **options})


@pytest.fixture
def both(tiny_bundle: Path, paged: Path) -> Iterator[Callable[..., Any]]:
    """Call a method of both executors; the results, which must be close."""
    with closing(opened(paged)) as blocks, closing(OnnxExecutor(open_bundle(tiny_bundle), slots=4)) as rows:

        def call(name: str, *arguments: Any) -> Any:
            got, wanted = (getattr(executor, name)(*arguments) for executor in (blocks, rows))
            if wanted is not None:
                np.testing.assert_allclose(got, wanted, 1e-3, 5e-5)
            return got

        yield call


def ids(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 320, count)


def test_prefill_decode_and_shared_beginnings_are_those_of_rows(both: Any) -> None:
    both("prefill", 0, 0, ids(50))
    both("copy_slot", 0, 1, 30)
    both("prefill_without_logits", 2, 0, ids(20, 1))
    for step in range(20):
        both("decode", ids(3, step), np.array([50, 30, 20], np.int32) + step)
    both("all_logits", 1, 50, ids(9, 2))
    both("prefill", 1, 52, ids(30, 3))  # a draft was rejected
    both("free_slot", 0, 17)
    both("prefill", 0, 17, ids(5, 4))


def test_several_prompts_in_one_run_are_those_of_one_each(paged: Path) -> None:
    with closing(opened(paged)) as executor:
        alone = [executor.prefill(slot, 0, ids(5 + 9 * slot, slot)).copy() for slot in range(3)]
        together = executor.prefill_batch(0, [0, 0, 0], [ids(5 + 9 * slot, slot) for slot in range(3)])
        np.testing.assert_allclose(together, np.stack(alone), 1e-3, 5e-5)


def test_what_is_read_can_be_written_elsewhere(paged: Path) -> None:
    with closing(opened(paged)) as executor:
        executor.prefill(0, 0, ids(40))
        executor.write(3, 0, executor.read(0, 0, 40))
        expected = executor.prefill(0, 40, ids(3, 1)).copy()
        assert executor.tables.held(3) != executor.tables.held(0)
        np.testing.assert_array_equal(executor.prefill(3, 40, ids(3, 1)), expected)


@pytest.mark.parametrize(
    "options", [{}, {"prefix_cache": 1 << 24}, {"speculation": 4}, {"kv_memory": 70 << 10}], ids=str
)
def test_an_engine_over_blocks_gives_the_tokens_of_one_over_rows(
    tiny_bundle: Path, paged: Path, options: dict[str, Any]
) -> None:
    engine = EngineOptions(max_concurrency=4, prefill_chunk=16, **options)
    prompts = [ids(n, n % 3).tolist() for n in (40, 7, 40, 61, 12, 100, 40, 3, 64, 9)]
    params = runtime.SamplingParams(max_tokens=12, ignore_eos=True, temperature=0)
    answers = []
    for executor in (opened(paged, kv_memory=options.get("kv_memory")), None):
        with runtime.LLM(tiny_bundle, executor=executor, options=engine) as llm:
            answers.append([answer.token_ids for answer in llm.generate(prompts, params)])
    assert answers[0] == answers[1]


def test_a_long_prompt_runs_where_rows_of_that_size_would_not_fit(paged: Path) -> None:
    token = open_bundle(paged).manifest.kv_cache.bytes_per_token
    with closing(opened(paged, slots=16, kv_memory=300 * token)) as executor:
        assert executor.capacity == 256
        assert executor.prefill(0, 0, ids(250)).shape == (320,)
    with pytest.raises(OptionError, match="Raise --kv-memory"):
        opened(paged, kv_memory=10 * token)


FAMILIES = ["gpt2", "gemma2", "gemma3n_text", "gpt_oss", "phi3", "gptj", "glm4", "mistral", "deepseek_v3", "ministral3"]


@pytest.mark.parametrize("name", FAMILIES)
def test_families_in_blocks_compute_what_they_do_in_rows(name: str, tmp_path: Path, make_bundle: Any) -> None:
    families = pytest.importorskip("tiny_families")
    families.save_random(next(case for case in families.CASES if str(case) == name), tmp_path / "checkpoint")
    dense = make_bundle(tmp_path / "checkpoint")
    paged = paged_on_cpu(dense, tmp_path / "paged", 8)
    with closing(opened(paged)) as blocks, closing(OnnxExecutor(open_bundle(dense), slots=4)) as rows:
        for executor in (blocks, rows):
            executor.prefill(0, 0, ids(40) % 119)
            executor.prefill(1, 0, ids(21) % 119)
        step = ids(2) % 119, np.array([40, 21], np.int32)
        np.testing.assert_allclose(blocks.decode(*step), rows.decode(*step), 5e-3, 5e-4)
        got, wanted = (executor.prefill(2, 0, ids(70) % 119) for executor in (blocks, rows))
        np.testing.assert_allclose(got, wanted, 5e-3, 5e-4)


def test_what_cannot_be_paged_is_refused_by_name(make_bundle: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Add --target cuda"):
        make_bundle(tiny_checkpoint, kv="paged")
    families = pytest.importorskip("tiny_families")
    for name, reason in (("bloom", "ALiBi"), ("lfm2", "keep a state")):
        families.save_random(next(case for case in families.CASES if str(case) == name), tmp_path / name)
        with pytest.raises(UnsupportedError, match=reason):
            make_bundle(tmp_path / name, target="cuda", kv="paged")
