"""Chunk sizes: whole while nobody reads along, otherwise rare and large, or often and small."""

import pytest

from runtime.engine.scheduling.prefill_policy import ChunkedPrefillPolicy, PrefillWork

LONG = PrefillWork(left=10_000, whole=10_000)
SHORT = PrefillWork(left=300, whole=300)


def measured(decode: float = 0.041) -> ChunkedPrefillPolicy:
    pace = ChunkedPrefillPolicy(512, aging_seconds=10)
    for _ in range(50):
        pace.decoded(decode)
        pace.prefilled(100, 0.200)  # 2 ms per token
    return pace


def stepped(pace: ChunkedPrefillPolicy, steps: int) -> ChunkedPrefillPolicy:
    for _ in range(steps):
        pace.stepped()
    return pace


def test_while_nobody_reads_along_a_prompt_gets_the_largest_chunk() -> None:
    assert measured().size(LONG, streaming_active=False) == 512


def test_beside_readers_a_long_prompt_gets_a_large_chunk_once_in_many_steps() -> None:
    assert stepped(measured(), 27).size(LONG, streaming_active=True) == 0
    assert stepped(measured(), 28).size(LONG, streaming_active=True) == 125  # 250 ms


def test_fewer_than_one_token_in_twenty_waits_for_a_long_prompt() -> None:
    pace = measured()
    chunks = 0
    for _ in range(1000):
        pace.stepped()
        if size := pace.size(LONG, streaming_active=True):
            pace.prefilled(size, size * 0.002)
            chunks += 1
    assert 0 < chunks / 1000 < 0.05


def test_where_steps_are_slow_a_pause_is_as_long_as_five() -> None:
    assert stepped(measured(decode=0.2), 28).size(LONG, streaming_active=True) == 500


@pytest.mark.parametrize(("waited", "steps"), [(10, 28), (20, 14), (100, 3), (10_000, 1)])
def test_the_older_a_long_prompt_the_more_often_it_gets_a_chunk(waited: float, steps: int) -> None:
    old = PrefillWork(10_000, 10_000, waited)
    assert stepped(measured(), steps - 1).size(old, streaming_active=True) == 0
    assert stepped(measured(), steps).size(old, streaming_active=True) == 125


def test_a_prompt_that_is_not_long_gets_less_than_a_decode_step_in_every_turn() -> None:
    assert measured().size(SHORT, streaming_active=True) == 14  # 0.7 of 41 ms
    assert measured(decode=0.010).size(SHORT, streaming_active=True) == 20  # with the step 50 ms, a reader's time


def test_the_more_rows_are_starved_the_more_a_prompt_gets_in_every_turn() -> None:
    prompts = [PrefillWork(10_000, 10_000, waiting=waiting) for waiting in (2, 3, 5)]
    assert [measured().size(prompt, streaming_active=True) for prompt in prompts] == [28, 43, 71]


def test_a_slow_prefill_still_moves() -> None:
    pace = measured()
    for _ in range(50):
        pace.prefilled(10, 1.0)
    assert pace.size(SHORT, streaming_active=True) == 4
    assert ChunkedPrefillPolicy(1).size(SHORT, streaming_active=True) == 1


def test_where_a_step_and_the_largest_chunk_are_soon_done_a_long_prompt_gets_it_in_every_turn() -> None:
    pace = ChunkedPrefillPolicy(512)
    pace.decoded(0.010)
    pace.prefilled(512, 0.015)
    assert pace.size(LONG, streaming_active=True) == 512


def test_before_anything_is_measured_it_takes_the_largest() -> None:
    assert ChunkedPrefillPolicy(64).size(LONG, streaming_active=True) == 64


def test_what_takes_a_tenth_of_a_second_is_not_cut() -> None:
    assert measured().size(PrefillWork(50, 10_000), streaming_active=True) == 50
    assert measured().size(PrefillWork(51, 51), streaming_active=True) == 14


def test_small_chunks_say_nothing_of_what_a_whole_prompt_takes() -> None:
    pace = measured()
    for _ in range(50):
        pace.prefilled(4, 0.040)
    assert pace.size(PrefillWork(50, 50), streaming_active=True) == 50
