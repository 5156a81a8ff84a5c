import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from runtime.errors import ExecutionError, RequestError
from runtime.options import SamplingParams
from runtime.sampling.logprobs import token_logprob
from runtime.sampling.sampler import Sampler, cut_off

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 0.5], np.float32)


def sampler(vocab_size=LOGITS.size, prompt=(), stop_ids=(), constraint=None, index=0, **params):
    return Sampler(SamplingParams(**params), vocab_size, prompt, stop_ids=stop_ids, constraint=constraint, index=index)


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def chi_square(expected, draws):
    """Pearson's statistic over the outcomes that may happen; asserts that no other one did."""
    observed = np.bincount(draws, minlength=expected.size)
    assert observed[expected == 0].sum() == 0
    possible = expected > 0
    wanted = expected[possible] * len(draws)
    return float(((observed[possible] - wanted) ** 2 / wanted).sum())


class Only:
    """A constraint that allows the same ids at each step."""

    def __init__(self, *ids, vocab_size=LOGITS.size):
        self.mask = np.zeros(vocab_size, np.bool_)
        self.mask[list(ids)] = True
        self.chosen = []

    def allowed(self):
        return self.mask

    def advance(self, token_id):
        self.chosen.append(token_id)


def test_greedy_takes_the_largest_and_of_equals_the_first():
    assert sampler().sample(LOGITS).token_id == 1
    assert sampler().sample(np.array([0, 2, 2, 0, 0], np.float32)).token_id == 1


def test_greedy_takes_half_precision_logits():
    assert sampler().sample(LOGITS.astype(np.float16)).token_id == 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_logits_fail_the_request(temperature, broken):
    logits = LOGITS.copy()
    logits[3] = broken
    with pytest.raises(ExecutionError, match="logit"):
        sampler(temperature=temperature).sample(logits)


def test_all_minus_infinity_is_broken_but_some_is_not():
    logits = np.full(5, -np.inf, np.float32)
    with pytest.raises(ExecutionError):
        sampler().sample(logits)
    logits[2] = 0
    assert sampler(temperature=1.0).sample(logits).token_id == 2


# 13.28, 18.47 and 11.34 are the 99 %, 99.9 % and 99 % points of chi-square with 4, 4 and 3 degrees of freedom.
def test_draws_follow_the_softmax():
    one = sampler(temperature=1.0, seed=1)
    draws = [one.sample(LOGITS).token_id for _ in range(20_000)]
    assert chi_square(softmax(LOGITS), draws) < 13.28


def test_draws_follow_the_temperature():
    one = sampler(temperature=0.5, seed=2)
    draws = [one.sample(LOGITS).token_id for _ in range(20_000)]
    assert chi_square(softmax(LOGITS / 0.5), draws) < 13.28
    assert chi_square(softmax(LOGITS), draws) > 1000


def test_draws_over_a_large_vocabulary_reach_every_block():
    logits = np.zeros(1000, np.float32)
    one = sampler(vocab_size=1000, temperature=1.0, seed=3)
    draws = [one.sample(logits).token_id for _ in range(50_000)]
    assert chi_square(softmax(logits), draws) < 1105  # the 99 % point for 999


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, [1, 2]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.6}, [1]),
        ({"top_p": 0.85}, [1, 2]),
        ({"min_p": 0.3}, [1, 2]),
        ({"top_k": 3, "top_p": 0.95}, [0, 1, 2]),
        ({"top_k": 2, "top_p": 0.7}, [1]),
        ({"min_p": 1.0}, [1]),
    ],
)
def test_filters_keep_and_renormalise(params, kept):
    expected = np.zeros(LOGITS.size)
    expected[kept] = softmax(LOGITS[kept])
    one = sampler(temperature=1.0, seed=4, **params)
    draws = [one.sample(LOGITS).token_id for _ in range(5_000)]
    assert chi_square(expected, draws) < 18.47


def test_equal_tokens_at_the_edge_are_all_kept():
    logits = np.array([1, 1, 1, 0], np.float32)
    one = sampler(vocab_size=4, temperature=1.0, top_k=1, seed=5)
    assert {one.sample(logits).token_id for _ in range(200)} == {0, 1, 2}


def test_a_tiny_temperature_is_greedy():
    assert sampler(temperature=1e-30).sample(LOGITS).token_id == 1
    assert sampler(temperature=1e-4).sample(LOGITS * 1000).token_id == 1


def test_the_same_seed_repeats_and_another_does_not():
    def text(seed):
        one = sampler(temperature=2.0, seed=seed)
        return [one.sample(LOGITS).token_id for _ in range(50)]

    assert text(7) == text(7)
    assert text(7) != text(8)


def test_without_a_seed_a_fresh_one_is_reported_and_repeats():
    first, second = sampler(temperature=2.0), sampler(temperature=2.0)
    again = sampler(temperature=2.0, seed=first.seed)
    assert first.seed != second.seed
    assert [first.sample(LOGITS) for _ in range(50)] == [again.sample(LOGITS) for _ in range(50)]


def test_answers_of_one_request_differ():
    first, second = (sampler(temperature=2.0, seed=7, index=i) for i in (0, 1))
    assert [first.sample(LOGITS) for _ in range(50)] != [second.sample(LOGITS) for _ in range(50)]


def test_bias_raises_and_bans():
    assert sampler(logit_bias={3: 10}).sample(LOGITS).token_id == 3
    assert sampler(logit_bias={1: -100}).sample(LOGITS).token_id == 2


def test_logits_are_never_modified():
    before = LOGITS.copy()
    one = sampler(prompt=[1], temperature=0.7, top_k=2, logit_bias={1: -5}, repetition_penalty=2.0, logprobs=2)
    one.sample(LOGITS)
    np.testing.assert_array_equal(LOGITS, before)


def test_repetition_penalty_counts_prompt_and_output():
    one = sampler(prompt=[1], repetition_penalty=2.0)
    assert one.sample(LOGITS).token_id == 2  # 3/2 < 2
    assert one.sample(LOGITS).token_id == 1  # 3/2 > 2/2
    negative = np.array([-1.0, -1.5], np.float32)
    assert sampler(vocab_size=2, prompt=[0], repetition_penalty=2.0).sample(negative).token_id == 1


def test_presence_and_frequency_count_the_output_only():
    presence = sampler(prompt=[1], presence_penalty=1.5)
    assert [presence.sample(LOGITS).token_id for _ in range(3)] == [1, 2, 1]  # 3−1.5 < 2, then 1.5 > 0.5
    frequency = sampler(frequency_penalty=0.6)
    assert [frequency.sample(LOGITS).token_id for _ in range(3)] == [1, 1, 2]  # 3, 2.4, then 1.8 < 2


def test_no_stop_id_before_min_tokens():
    one = sampler(stop_ids=[1], stop_token_ids=[2], min_tokens=2)
    assert [one.sample(LOGITS).token_id for _ in range(3)] == [0, 0, 1]


def test_a_constraint_decides_and_is_told():
    only = Only(0, 3)
    one = sampler(constraint=only, temperature=1.0, seed=1)
    draws = [one.sample(LOGITS).token_id for _ in range(50)]
    assert set(draws) == {0, 3}
    assert only.chosen == draws


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_allowed_is_an_error(temperature):
    with pytest.raises(ExecutionError, match="No token is allowed"):
        sampler(constraint=Only(), temperature=temperature).sample(LOGITS)
    with pytest.raises(ExecutionError, match="No token is allowed"):
        sampler(constraint=Only(1), stop_ids=[1], min_tokens=1, temperature=temperature).sample(LOGITS)


def test_a_failed_step_remembers_nothing():
    one = sampler(presence_penalty=1.5)
    with pytest.raises(ExecutionError):
        one.sample(np.full(5, np.nan, np.float32))
    assert one.sample(LOGITS).token_id == 1


def test_logprobs_come_from_raw_logits():
    one = sampler(logprobs=2, logit_bias={3: 50}, temperature=0.1, seed=1)
    result = one.sample(LOGITS).logprob
    expected = np.log(softmax(LOGITS))
    assert result.token_id == 3
    np.testing.assert_allclose(result.logprob, expected[3], atol=1e-6)
    assert [i for i, _ in result.top] == [1, 2]


def test_logprobs_zero_gives_the_token_alone_and_none_gives_nothing():
    assert sampler(logprobs=0).sample(LOGITS).logprob.top == ()
    assert sampler().sample(LOGITS).logprob is None


def test_equal_alternatives_come_by_id():
    assert [i for i, _ in token_logprob(np.zeros(6, np.float32), 0, 3).top] == [0, 1, 2]
    assert len(token_logprob(LOGITS, 0, 5).top) == 5


def test_the_vocabulary_is_checked():
    with pytest.raises(RequestError, match="vocabulary"):
        sampler(logit_bias={5: 1.0})


finite = st.floats(-30, 30, width=32)


@given(
    arrays(np.float32, st.integers(1, 600), elements=finite), st.integers(0, 700), st.floats(0.01, 1), st.floats(0, 1)
)
@example(np.array([2, 1, 1, 1], np.float32), 2, 0.6, 0.0)  # the second likeliest is three
def test_the_cut_off_agrees_with_sorting(logits, top_k, top_p, min_p):
    weights = np.exp(logits - logits.max())
    kept = set(np.flatnonzero(weights >= cut_off(weights, top_k, top_p, min_p)))
    order = np.argsort(-weights, kind="stable")
    if 0 < top_k < order.size:
        order = order[weights[order] >= weights[order[top_k - 1]]]  # those as likely as the k-th stay, as elsewhere
    reach = np.cumsum(weights[order], dtype=np.float64)
    fewest, most = (1 + int((reach < (top_p + slack) * reach[-1]).sum()) for slack in (-1e-6, 1e-6))
    fewest = fewest if top_p < 1 else order.size
    assert {i for i in order[:fewest] if weights[i] >= min_p} <= kept
    assert min(weights[list(kept)]) >= weights[order[:most]].min()
    assert max(weights[list(kept)]) == 1


@given(arrays(np.float32, st.integers(2, 400), elements=finite), st.data())
def test_never_a_banned_token(logits, data):
    banned = data.draw(st.sets(st.integers(0, logits.size - 1), max_size=logits.size - 1))
    only = Only(*set(range(logits.size)) - banned, vocab_size=logits.size)
    one = sampler(
        vocab_size=logits.size, constraint=only, temperature=5.0, top_p=0.999, seed=data.draw(st.integers(0, 99))
    )
    assert one.sample(logits).token_id not in banned
