"""Chunk sizes: whole while nobody reads along, otherwise about as long as a decode step."""

from runtime.prefill_pace import PrefillPace


def measured() -> PrefillPace:
    pace = PrefillPace(512, share=0.8, patience=10)
    for _ in range(50):
        pace.decoded(0.050)
        pace.prefilled(100, 0.200)  # 2 ms per token
    return pace


def test_while_nobody_reads_along_a_prompt_gets_the_largest_chunk() -> None:
    assert measured().size(paced=False, waited=0, left=10_000) == 512


def test_beside_a_reader_a_chunk_takes_less_than_a_decode_step() -> None:
    assert measured().size(paced=True, waited=0, left=10_000) == 20


def test_where_decoding_is_faster_than_reading_step_and_chunk_take_a_readers_time() -> None:
    pace = measured()
    for _ in range(50):
        pace.decoded(0.009)
    assert pace.size(paced=True, waited=0, left=10_000) == 20  # 9 ms, and 20 tokens of 2 ms


def test_the_older_a_prompt_the_more_it_gets() -> None:
    sizes = [measured().size(paced=True, waited=seconds, left=10_000) for seconds in (10, 20, 100, 10_000)]
    assert sizes == [20, 40, 200, 512]


def test_a_slow_prefill_still_moves() -> None:
    pace = measured()
    for _ in range(50):
        pace.prefilled(10, 1.0)
    assert pace.size(paced=True, waited=0, left=10_000) == 4


def test_before_anything_is_measured_it_takes_the_largest() -> None:
    assert PrefillPace(64).size(paced=True, waited=0, left=10_000) == 64


def test_what_takes_a_tenth_of_a_second_is_not_cut() -> None:
    assert measured().size(paced=True, waited=0, left=50) == 50
    assert measured().size(paced=True, waited=0, left=51) == 20


def test_small_chunks_say_nothing_of_what_a_whole_prompt_takes() -> None:
    pace = measured()
    for _ in range(50):
        pace.prefilled(4, 0.040)
    assert pace.size(paced=True, waited=0, left=50) == 50


def test_the_more_rows_are_starved_the_more_a_prompt_gets() -> None:
    assert [measured().size(paced=True, waited=0, left=10_000, prompts=n) for n in (0, 1, 2, 5)] == [20, 20, 40, 100]
