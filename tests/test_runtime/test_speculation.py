"""Drafts never change an answer; they only make it come sooner, and stop where they do not."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import LLM, EngineOptions, OptionError, RequestError, SamplingParams
from runtime.bundle.bundle import open_bundle
from runtime.engine.draft_model import DraftModel
from runtime.engine.speculation import PromptLookup
from runtime.ort.executor import OnnxExecutor

COPY = [5, 6, 7, 8, 9, 10, 11, 12]


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 8), st.integers(0, 10))
def test_a_draft_is_what_followed_the_last_tokens_before(tokens: list[int], most: int, room: int) -> None:
    draft = PromptLookup(most).draft(tokens, room)
    assert len(draft) <= min(most, room)
    if draft:
        ending = tokens[-2:]
        places = [place for place in range(2, len(tokens)) if tokens[place - 2 : place] == ending]
        assert any(tokens[place : place + len(draft)] == draft for place in places)


def test_it_learns_from_what_is_appended() -> None:
    lookup = PromptLookup(8)
    tokens = [1, 2, 3]
    assert lookup.draft(tokens, 8) == []
    tokens += [4, 1, 2]
    assert lookup.draft(tokens, 8) == [3, 4, 1, 2]


def test_drafts_grow_while_they_hold_and_shrink_when_not() -> None:
    lookup = PromptLookup(16)
    text = list(range(30)) * 2
    assert len(lookup.draft(text[:35], 64)) == 4
    lookup.verified(4, 4, 1.0, 1.0)
    assert len(lookup.draft(text[:36], 64)) == 8
    lookup.verified(8, 1, 1.0, 1.0)
    assert len(lookup.draft(text[:37], 64)) == 2


def test_drafts_that_do_not_pay_are_paused_for_longer_and_longer() -> None:
    lookup = PromptLookup(4)
    pauses, silent = [], 0
    for _ in range(600):
        if lookup.draft([1, 2, 3] * 20, 8):
            pauses += [silent] if silent else []
            silent = 0
            lookup.verified(4, 0, 1.6, 1.0)
        else:
            silent += 1
    assert pauses[:4] == [16, 32, 64, 128]


def test_a_score_is_the_logits_of_every_prefix(tiny_bundle: Path) -> None:
    executor = OnnxExecutor(open_bundle(tiny_bundle), slots=2, threads=1)
    ids = np.random.default_rng(0).integers(0, 320, 60)
    executor.prefill(0, 0, ids[:20])
    scores = executor.all_logits(0, 20, ids[20:]).copy()
    for length in (22, 31, 60):
        assert np.array_equal(executor.prefill(1, 0, ids[:length]), scores[length - 21])


FEW = dict.fromkeys((70, 71, 72, 73), 60.0)  # a text of four letters repeats itself all the time
PARAMS = {
    "greedy": SamplingParams(max_tokens=120, temperature=0, logit_bias=FEW),
    "sampled": SamplingParams(max_tokens=120, temperature=0.7, top_p=0.9, seed=11, logit_bias=FEW),
    "penalised": SamplingParams(max_tokens=60, temperature=0, repetition_penalty=1.3, logit_bias=FEW),
    "stopped": SamplingParams(
        max_tokens=120, temperature=0.5, seed=2, stop_token_ids=[72], min_tokens=40, logit_bias=FEW
    ),
}


@pytest.mark.parametrize("kind", PARAMS)
def test_the_answer_is_the_same_with_and_without_drafts(tiny_bundle: Path, kind: str) -> None:
    with LLM(tiny_bundle, options=EngineOptions(threads=1)) as llm:
        plain = llm.generate(COPY * 5, PARAMS[kind])
    executor = Counting(open_bundle(tiny_bundle), slots=4, threads=1)
    with LLM(tiny_bundle, executor=executor, options=EngineOptions(speculation=8)) as llm:
        drafted = llm.generate(COPY * 5, PARAMS[kind])
    assert (drafted.token_ids, drafted.text, drafted.finish_reason) == (
        plain.token_ids, plain.text, plain.finish_reason,
    )  # fmt: skip
    assert executor.verified


class Counting(OnnxExecutor):
    verified = 0

    def all_logits(self, slot: int, past: int, ids: np.ndarray) -> np.ndarray:
        self.verified += 1
        return super().all_logits(slot, past, ids)


class Parrot:
    """An embedder's executor without a model: it says its text again and again. Every step takes two milliseconds."""

    slots, capacity, vocab_size, bytes_per_token, can_give_all_logits = 4, 256, 320, 64, True

    def __init__(self, text: list[int]) -> None:
        self.text = text
        self.steps = 0

    def all_logits(self, slot: int, past: int, ids: np.ndarray) -> np.ndarray:
        self.steps += 1
        time.sleep(0.002)
        logits = np.zeros((len(ids), self.vocab_size), np.float32)
        for place in range(len(ids)):
            logits[place, self.text[(past + place + 1) % len(self.text)]] = 9.0
        return logits

    def prefill(self, slot: int, past: int, ids: np.ndarray) -> np.ndarray:
        return self.all_logits(slot, past, ids)[-1]

    def prefill_without_logits(self, slot: int, past: int, ids: np.ndarray) -> None: ...

    def decode(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [self.all_logits(slot, length, ids[slot : slot + 1]) for slot, length in enumerate(lengths)]
        )

    def copy_slot(self, source: int, target: int, length: int) -> None: ...

    def free_slot(self, slot: int, keep: int = 0) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...

    def read(self, slot: int, start: int, stop: int) -> list[np.ndarray]:
        return []

    def write(self, slot: int, start: int, block: list[np.ndarray]) -> None: ...


@pytest.mark.parametrize(("drafts", "most_steps"), [(0, 200), (8, 45)])
def test_repeated_text_takes_fewer_steps(tiny_bundle: Path, drafts: int, most_steps: int) -> None:
    parrot = Parrot([5, 60, 70, 80, 90, 10, 11])
    with LLM(tiny_bundle, executor=parrot, options=EngineOptions(speculation=drafts)) as llm:
        completion = llm.generate(parrot.text, SamplingParams(max_tokens=200, temperature=0, ignore_eos=True))
    assert list(completion.token_ids) == (parrot.text * 40)[7:207]
    assert parrot.steps <= most_steps


@pytest.mark.parametrize("chunk", [5, 512])
def test_prompt_logprobs_score_every_prompt_token(tiny_bundle: Path, chunk: int) -> None:
    prompt = np.random.default_rng(1).integers(0, 320, 150).tolist()
    params = SamplingParams(max_tokens=0, prompt_logprobs=2)
    with LLM(tiny_bundle, options=EngineOptions(threads=1, prefill_chunk=chunk)) as llm:
        llm.generate(prompt, SamplingParams(max_tokens=1))  # warm, and yet nothing may be taken from there
        scored = llm.generate(prompt, params).prompt_logprobs
        single = [llm.generate(prompt[:n], SamplingParams(max_tokens=1, logprobs=320)) for n in (1, 2, 70, 149)]
    assert scored is not None
    assert scored[0] is None
    assert [entry.token_id for entry in scored[1:] if entry] == prompt[1:]
    for n, one in zip((1, 2, 70, 149), single, strict=True):
        assert one.logprobs is not None
        entry = scored[n]
        assert entry is not None
        assert dict(one.logprobs[0].top)[prompt[n]] == pytest.approx(entry.logprob, abs=1e-5)


def test_an_executor_without_scores_refuses_both(tiny_bundle: Path) -> None:
    parrot = Parrot([1, 2])
    parrot.can_give_all_logits = False
    with pytest.raises(OptionError, match="speculation needs"):
        LLM(tiny_bundle, executor=parrot, options=EngineOptions(speculation=4))
    with LLM(tiny_bundle, executor=parrot) as llm, pytest.raises(RequestError, match="prompt_logprobs"):
        llm.generate([1, 2], SamplingParams(prompt_logprobs=1))


@pytest.fixture(scope="module")
def other_bundle(make_bundle: Callable[..., Path], make_checkpoint: Callable[..., Path]) -> Path:
    return make_bundle(make_checkpoint(num_hidden_layers=1, intermediate_size=64))


@pytest.mark.parametrize("kind", PARAMS)
def test_a_draft_model_changes_no_answer_be_it_good_or_bad(tiny_bundle: Path, other_bundle: Path, kind: str) -> None:
    with LLM(tiny_bundle, options=EngineOptions(threads=1)) as llm:
        plain = llm.generate(COPY * 5, PARAMS[kind])
    for draft in (tiny_bundle, other_bundle):
        executor = Counting(open_bundle(tiny_bundle), slots=4, threads=1)
        with LLM(tiny_bundle, executor=executor, options=EngineOptions(threads=1), draft=draft) as llm:
            drafted = llm.generate(COPY * 5, PARAMS[kind])
        assert drafted.token_ids == plain.token_ids
        assert executor.verified


def test_several_answers_with_a_draft_model_are_those_of_one_each(tiny_bundle: Path, other_bundle: Path) -> None:
    prompts = [COPY * n for n in (1, 2, 3, 4)]
    with LLM(tiny_bundle, options=EngineOptions(threads=1)) as llm:
        plain = [llm.generate(prompt, PARAMS["sampled"]).token_ids for prompt in prompts]
    with LLM(tiny_bundle, options=EngineOptions(threads=1), draft=other_bundle) as llm:
        together = llm.generate(prompts, PARAMS["sampled"])
    assert [one.token_ids for one in together] == plain


def test_a_continuation_is_greedy_whatever_was_asked_before(tiny_bundle: Path) -> None:
    with LLM(tiny_bundle, options=EngineOptions(threads=1)) as llm:
        texts = [list(range(5, 30)), list(range(5, 20)), [9] * 100, [9] * 100 + [4]]
        answers = [llm.generate(text, max_tokens=4, temperature=0, ignore_eos=True).token_ids for text in texts]
    model = DraftModel(OnnxExecutor(open_bundle(tiny_bundle), slots=1, threads=1), 320)
    for text, answer in [*zip(texts, answers, strict=True)] * 2:
        assert model.continuation(text, 4) == list(answer)
    assert model.continuation(texts[0] * 20, 4) == []  # longer than its context
    assert DraftModel(OnnxExecutor(open_bundle(tiny_bundle), slots=1, threads=1), 8).continuation([9], 1) == []


def test_a_draft_model_with_another_tokenizer_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_bundle, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second, *_ = (token for token in vocabulary if vocabulary[token] > 60)
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    manifest = json.loads((other / "manifest.json").read_text())
    content = (other / "tokenizer.json").read_bytes()
    manifest["files"]["tokenizer.json"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(OptionError, match="has another tokenizer"):
        LLM(tiny_bundle, draft=other)
