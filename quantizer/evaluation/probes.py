"""Abilities that averages over a text hide: recall from a long context, arithmetic, copying.

For each question two figures: whether the model gives the reference's own greedy answer, and the margin, the log-
likelihood per token of the right answer under the model less that under the reference. A model too small to answer is
still compared with itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..progress import Progress

if TYPE_CHECKING:
    from runtime import LLM

_FILLER = "The grass was green and the sky was blue, and the road went on between the fields. "
_PLACES = ("harbour", "library", "market", "garden", "station", "museum")
_ANSWER_TOKENS = 12


@dataclass(frozen=True)
class Question:
    """A prompt and the answer that is right."""

    ability: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Probe:
    """One ability over all its questions.

    Attributes:
        name: what is asked: "recall at 512 tokens", "arithmetic", "copying".
        questions: how many.
        agreement: share of the reference's greedy answer tokens that the model gives too, up to the first difference.
        margin: mean log-likelihood per token of right answers, less the reference's.
    """

    name: str
    questions: int
    agreement: float
    margin: float


def compare_probes(folder: Path, reference: Path, lengths: Sequence[int], progress: Progress) -> list[Probe]:
    """Ask both models the same questions.

    Args:
        folder: the model.
        reference: the model it was made from.
        lengths: tokens of the contexts for recall; those that do not fit the model are left out.
        progress: is told of each model.
    """
    from runtime import LLM, EngineOptions

    answers = []
    for i, path in enumerate((folder, reference)):
        progress(f"asking {path.name}", i, 2)
        with LLM(path, options=EngineOptions(prepare=False)) as llm:
            most = llm.model.bundle.manifest.architecture.context_length
            questions = list(make_questions(llm, [n for n in lengths if n + 64 <= most]))
            answers.append(_ask(llm, questions))
    (ours, our_scores), (theirs, their_scores) = answers
    names = list(dict.fromkeys(question.ability for question in questions))
    return [
        _summary(name, [q.ability == name for q in questions], ours, theirs, our_scores - their_scores)
        for name in names
    ]


def make_questions(llm: "LLM", lengths: Sequence[int], seed: int = 0) -> Iterator[Question]:
    """The questions, the same for every model with this tokenizer."""
    rng = np.random.default_rng(seed)
    filler = len(llm.model.tokenizer.encode(_FILLER, add_special_tokens=False))
    for length in lengths:
        for depth in (0.1, 0.5, 0.9):
            place, code = str(rng.choice(_PLACES)), str(rng.integers(1000, 9999))
            yield Question(f"recall at {length} tokens", *_recall(place, code, length // filler, depth))
    for _ in range(8):
        a, b, c = (int(number) for number in rng.integers(2, 20, 3))
        yield Question("arithmetic", f"3 + 4 - 2 = 5\n12 + 5 - 7 = 10\n{a} + {b} - {c} =", f" {a + b - c}")
    for _ in range(4):
        word = " ".join(str(number) for number in rng.integers(10, 99, 8))
        yield Question("copying", f"Original: {word}\nCopy: {word}\nOriginal: {word[::-1]}\nCopy:", f" {word[::-1]}")


def _recall(place: str, code: str, sentences: int, depth: float) -> tuple[str, str]:
    before = round(sentences * depth)
    fact = f"The secret number of the {place} is {code}. "
    text = _FILLER * before + fact + _FILLER * (sentences - before)
    return f"{text}\nQuestion: What is the secret number of the {place}?\nAnswer: The secret number is", f" {code}"


def _ask(llm: "LLM", questions: Sequence[Question]) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Greedy answers, and the mean log-likelihood of the right one's tokens."""
    from runtime import SamplingParams

    encode = llm.model.tokenizer.encode
    prompts = [encode(question.prompt) for question in questions]
    right = [encode(question.answer, add_special_tokens=False) for question in questions]
    greedy = SamplingParams(max_tokens=_ANSWER_TOKENS, temperature=0.0, repetition_penalty=1.0, ignore_eos=True)
    scoring = SamplingParams(max_tokens=0, prompt_logprobs=0)
    answers = [completion.token_ids for completion in llm.generate(prompts, greedy)]
    scored = llm.generate([prompt + answer for prompt, answer in zip(prompts, right, strict=True)], scoring)
    scores = [
        np.mean([entry.logprob for entry in (completion.prompt_logprobs or ())[-len(answer) :] if entry])
        for completion, answer in zip(scored, right, strict=True)
    ]
    return answers, np.array(scores)


def _summary(
    name: str,
    chosen: Sequence[bool],
    ours: Sequence[tuple[int, ...]],
    theirs: Sequence[tuple[int, ...]],
    margins: np.ndarray,
) -> Probe:
    picked = [i for i, wanted in enumerate(chosen) if wanted]
    shares = [_common(ours[i], theirs[i]) / max(1, len(theirs[i])) for i in picked]
    return Probe(name, len(picked), float(np.mean(shares)), float(margins[picked].mean()))


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens before the first difference."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    return same.index(False) if False in same else len(same)
