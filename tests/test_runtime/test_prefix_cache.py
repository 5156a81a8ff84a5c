"""The prefix cache alone, against the plain statement of what it may return, and inside the engine."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime import LLM, EngineOptions, SamplingParams
from runtime.cache.host import Array
from runtime.cache.prefix_cache import PrefixCache

BLOCK = 4
BLOCK_BYTES = BLOCK * 8


def reader(tokens: list[int]) -> Callable[[int, int], list[Array]]:
    """A cache row that holds the tokens themselves, so that a wrong block is seen."""
    return lambda start, stop: [np.array(tokens[start:stop])]


def restored(cache: PrefixCache, tokens: list[int]) -> list[int]:
    return [token for block in cache.match(tokens, len(tokens)) for token in block.data[0].tolist()]


texts = st.lists(st.integers(0, 1), max_size=20)


@given(st.lists(texts, max_size=12), texts, st.integers(0, 6))
def test_what_is_found_is_always_a_beginning_of_what_was_asked(
    stored: list[list[int]], asked: list[int], room: int
) -> None:
    cache = PrefixCache(room * BLOCK_BYTES, BLOCK)
    for tokens in stored:
        cache.store(tokens, len(tokens), reader(tokens))
        assert cache.size == len(cache) * BLOCK_BYTES <= cache.limit
    found = restored(cache, asked)
    assert found == asked[: len(found)]


def test_only_whole_blocks_within_the_limit_are_found() -> None:
    cache = PrefixCache(1000, BLOCK)
    tokens = list(range(11))
    cache.store(tokens, 11, reader(tokens))
    assert restored(cache, tokens) == tokens[:8]
    assert [len(cache.match(tokens, limit)) for limit in (3, 4, 7, 8)] == [0, 1, 1, 2]


def test_a_shared_beginning_is_kept_once() -> None:
    cache = PrefixCache(1000, BLOCK)
    for tail in range(5):
        tokens = [1] * 8 + [tail] * 4
        cache.store(tokens, 12, reader(tokens))
    assert len(cache) == 2 + 5


def test_the_least_recently_used_goes_first_and_never_before_its_children() -> None:
    cache = PrefixCache(3 * BLOCK_BYTES, BLOCK)
    old, new = [1] * 8, [2] * 4
    cache.store(old, 8, reader(old))
    cache.store(new, 4, reader(new))
    cache.match(old, 8)
    cache.store([3] * 4, 4, reader([3] * 4))
    assert restored(cache, old) == old
    assert restored(cache, new) == []


def test_a_prompt_longer_than_the_cache_keeps_its_beginning() -> None:
    cache = PrefixCache(2 * BLOCK_BYTES, BLOCK)
    cache.store(list(range(20)), 20, reader(list(range(20))))
    assert restored(cache, list(range(20))) == list(range(8))


def test_a_prefix_survives_when_every_row_was_used_since(
    synthetic_bundle: Path, continuation: Callable[[list[int], int], list[int]]
) -> None:
    draw = random.Random(0)
    system = [draw.randrange(320) for _ in range(150)]
    options = EngineOptions(threads=1, max_concurrency=2, prefix_cache=1 << 20)
    with LLM(synthetic_bundle, options=options) as llm:
        for number in range(8):
            llm.generate([*system, number], SamplingParams(max_tokens=3))
            llm.generate([[number] * 90, [number + 100] * 90], SamplingParams(max_tokens=20))
        completion = llm.generate([*system, 77], SamplingParams(max_tokens=20))
    assert completion.cached_tokens == 128
    assert list(completion.token_ids) == continuation([*system, 77], 20)


def test_a_prefix_hit_is_bitwise_a_miss(tiny_bundle: Path) -> None:
    prompt = [7, 30, 200] * 50
    params = SamplingParams(max_tokens=10, logprobs=3)
    with LLM(tiny_bundle, options=EngineOptions(threads=1, max_concurrency=1)) as llm:
        miss = llm.generate(prompt, params)
    options = EngineOptions(threads=1, max_concurrency=1, prefix_cache=1 << 22)
    with LLM(tiny_bundle, options=options) as llm:
        llm.generate([*prompt[:140], 9], params)
        llm.generate([1] * 100, params)  # takes the only row
        hit = llm.generate(prompt, params)
    assert hit.cached_tokens == 128
    assert (hit.token_ids, hit.logprobs) == (miss.token_ids, miss.logprobs)


def test_what_a_window_gave_back_is_not_kept(
    make_checkpoint: Callable[..., Path], make_bundle: Callable[..., Path]
) -> None:
    bundle = make_bundle(make_checkpoint(model_type="mistral", sliding_window=8))
    draw = random.Random(1)
    first = [draw.randrange(4, 320) for _ in range(220)]
    second, params = [*first[:66], *first[:9]], SamplingParams(max_tokens=5, logprobs=1)
    answers = []
    for asked in ([second], [first, second]):
        with LLM(bundle, options=EngineOptions(threads=1, max_concurrency=1, prefix_cache=1 << 22)) as llm:
            answers.append([llm.generate(prompt, params) for prompt in asked][-1])
    assert answers[0].logprobs == answers[1].logprobs
