"""Where token ids come from: a file of text, conversations or tokens, or the model itself."""

import hashlib
import json
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.bundle.bundle import Bundle, open_bundle
from runtime.errors import QuantizationError
from runtime.text.tokenizer import Tokenizer

from ..progress import Progress
from ..recipe import CacheText, Recipe

IntArray = npt.NDArray[np.int64]
CHUNK = 512
HELD_OUT = 4  # chunks that the result is measured on
_LEAST = 64  # tokens that are taken at all
_FEW = 2048  # tokens below which a Hessian says little
_MOST_ROWS = 32  # sampled at a time: on SmolLM2-135M, 18 rows are 1.8 times as fast as 8, 36 rows 2.1 times
_KV_BYTES = 1 << 30  # that these may take
_DRAWN = 4  # times the calibration tokens, at most, are read of a file for experts that lack some
_OTHER_SEED = 1_000_003  # of text that is written for them
_LOGGER = logging.getLogger("onnxlm.quantizer")


@dataclass(frozen=True)
class Text:
    """Token ids to calibrate on, and others to measure the result on.

    Attributes:
        name: where they come from: "self" or a file name.
        chunks: `[chunks, sequence]`.
        held_out: `[chunks, sequence]` to measure on, none of them in `chunks`.
        measured_on: what `held_out` is called in the manifest.
        file_sha256: of the file, where it comes from one.
        spare: further `[chunks, sequence]` of the file, for experts that see too few of `chunks`.
    """

    name: str
    chunks: IntArray
    held_out: IntArray
    measured_on: str
    file_sha256: str | None = None
    spare: IntArray | None = None

    @property
    def tokens_sha256(self) -> str:
        """Of all its token ids."""
        return hashlib.sha256(self.chunks.tobytes() + self.held_out.tobytes()).hexdigest()


def find_text(bundle: Bundle, recipe: Recipe, work: Path, progress: Progress, rows: int | None = None) -> Text:
    """The text that a recipe names, split for calibration and measurement. The model's own, `rows` chunks at a time, is
    kept in `work`.

    Raises:
        QuantizationError: the file cannot be used.
    """
    text = _found_text(bundle, recipe, work, progress, rows)
    _tell_of_other_tokens(recipe, text)
    return text


def cache_text(bundle: Bundle, wanted: CacheText, progress: Progress) -> Text:
    """The text that `quantize-kv` measures scales on, which may be the model's own.

    Raises:
        QuantizationError: the file cannot be used, or is another one than `wanted` knows.
    """
    if wanted.calibration == "self":
        progress("writing calibration text", 0, 1)
        text = split("self", write_own_text(bundle.folder, wanted.calibration_tokens, wanted.seed))
    else:
        source = Path(wanted.calibration)
        digest = _same_file(source, wanted.text_sha256)
        text = split(source.name, read_chunks(source, bundle, wanted.calibration_tokens), digest)
    _tell_of_other_tokens(wanted, text)
    return text


def _found_text(bundle: Bundle, recipe: Recipe, work: Path, progress: Progress, rows: int | None) -> Text:
    tokens = recipe.calibration_tokens + HELD_OUT * CHUNK
    if recipe.calibration != "self":
        source = Path(recipe.calibration)
        digest = _same_file(source, recipe.text_sha256)
        ordered = read_chunks(source, bundle, _DRAWN * tokens, CHUNK, first=tokens)
        chunks, spare = np.split(ordered, [max(1, tokens // ordered.shape[1])])
        _require_enough(source, chunks)
        return replace(split(source.name, chunks, digest), spare=spare)
    kept = own_text_file(recipe, work)
    if not kept.is_file():
        progress("writing calibration text", 0, 1)
        work.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(".new.npy")
        np.save(new, write_own_text(bundle.folder, tokens, recipe.seed, rows=rows))
        new.replace(kept)
    return split("self", np.load(kept))


def draw_text(
    text: Text, bundle: Bundle, recipe: Recipe, work: Path, progress: Progress, rows: int | None = None
) -> Iterator[IntArray]:
    """Further chunks, as long as experts lack tokens, each time as many as `text` has: of a file, what it has more, at
    most three times; of the model's own text, once, as it takes long to write.
    """
    if text.name != "self" or recipe.calibration != "self":
        spare, size = text.spare, len(text.chunks)
        for start in range(0, len(spare) if spare is not None else 0, size):
            yield spare[start : start + size]  # type: ignore[index]
        return
    again = replace(recipe, seed=recipe.seed + _OTHER_SEED)
    yield _found_text(bundle, again, work, progress, rows).chunks


def own_text_file(recipe: Recipe, work: Path) -> Path:
    """Where text that the model writes lies once it is written."""
    return work / f"self-{recipe.seed}-{recipe.calibration_tokens + HELD_OUT * CHUNK}.npy"


def _same_file(source: Path, known: str | None) -> str:
    """The hash of a file of text, which a recipe may know."""
    try:
        found = hashlib.sha256(source.read_bytes()).hexdigest()
    except OSError as error:
        raise QuantizationError(f"{source}: cannot be read as text or tokens ({error}).") from error
    if known not in (None, found):
        raise QuantizationError(
            f"{source}: is not the text that the recipe was made with (SHA-256 {found[:12]}…, not {known[:12]}…): the "
            "result would be another one. Bring that text back, or quantize by options in place of --recipe."
        )
    return found


def _tell_of_other_tokens(recipe: Recipe | CacheText, text: Text) -> None:
    if recipe.tokens_sha256 not in (None, text.tokens_sha256):
        how = "the model wrote other text" if text.name == "self" else f"{text.name} gave other tokens"
        _LOGGER.warning("%s than when the recipe was made: the result will differ in its last bits", how)


def _require_enough(source: Path, chunks: IntArray) -> None:
    if chunks.size < _LEAST:
        raise QuantizationError(
            f"{source}: {chunks.size} tokens are too few to calibrate on. Give at least {_FEW:,}, better 16,000; or "
            "leave out --calibration, and the model writes its own text."
        )


def split(name: str, chunks: IntArray, file_sha256: str | None = None) -> Text:
    """Hold out a few chunks, spread over the text; one chunk alone is cut in two."""
    called = f"held out of {name}"
    if len(chunks) < 2:
        half = chunks.shape[1] // 2
        return Text(name, chunks[:, :half], chunks[:, half:], called, file_sha256)
    held = np.unique(np.linspace(0, len(chunks) - 1, min(HELD_OUT, len(chunks) // 2)).astype(int))
    return Text(name, np.delete(chunks, held, axis=0), chunks[held], called, file_sha256)


def text_to_measure(source: Path, bundle: Bundle, tokens: int, length: int = CHUNK) -> Text:
    """A file's text, held out completely, for evaluation only. Arguments and errors: see `read_chunks`."""
    chunks = read_chunks(source, bundle, tokens, length)
    return Text(source.name, chunks[:0], chunks, source.name)


def read_chunks(
    source: Path, bundle: Bundle, tokens: int, length: int = CHUNK, *, first: int | None = None
) -> IntArray:
    """Token ids `[chunks, length]` of a file, at most `tokens` of them, spread evenly over the text.

    Args:
        source: `.txt` (any text), `.jsonl` (a "text" or "messages" in each line) or `.npy` (token ids).
        bundle: whose tokenizer and chat template are used.
        tokens: most tokens to use.
        length: of a chunk; less where the text or the model's context is shorter.
        first: of them, how many come first, evenly from all of the text by themselves.

    Raises:
        QuantizationError: the file cannot be read, is empty, or its tokens are not this model's.
    """
    ids = _read_ids(source, bundle)
    if len(ids) < 2:
        raise QuantizationError(f"{source}: no text in it. Give at least {_FEW:,} tokens, better 16,000.")
    vocabulary = bundle.manifest.architecture.vocab_size
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise QuantizationError(
            f"{source}: token id {ids.max()} is outside this model's vocabulary of {vocabulary}; "
            "the tokens were made by another model's tokenizer."
        )
    length = min(length, len(ids), bundle.manifest.architecture.context_length)
    chunks = ids[: len(ids) // length * length].reshape(-1, length)
    chosen = _evenly(len(chunks), (first or tokens) // length)
    left = np.setdiff1d(np.arange(len(chunks)), chosen)
    more = left[_evenly(len(left), (tokens - (first or tokens)) // length)] if first and len(left) else left[:0]
    ordered: IntArray = chunks[np.concatenate([chosen, more])]
    return ordered


def _evenly(count: int, wanted: int) -> IntArray:
    """`wanted` of the numbers below `count`, at least one."""
    return np.linspace(0, count - 1, max(1, min(count, wanted))).astype(np.int64)


def too_little(chunks: IntArray) -> str | None:
    """A warning if there is too little text for reliable Hessians."""
    if chunks.size >= _FEW:
        return None
    return (
        f"only {chunks.size:,} tokens of calibration text: the result may be worse than without. Give {_FEW:,} or more."
    )


def write_own_text(folder: Path, tokens: int, seed: int, length: int = CHUNK, rows: int | None = None) -> IntArray:
    """Token ids `[chunks, length]` that the model samples at temperature 1, each chunk from a random first token;
    `rows` of them at a time.
    """
    from runtime import LLM, EngineOptions, SamplingParams

    manifest = open_bundle(folder).manifest
    count, length = max(1, tokens // length), min(length, manifest.architecture.context_length)
    rng = np.random.default_rng(seed)
    rows = rows or rows_at_once(count, length * max(1, manifest.kv_cache.bytes_per_token))
    with LLM(folder, "cpu", EngineOptions(max_concurrency=rows, prepare=False)) as llm:
        first = [int(token) for token in _ordinary(llm.model.bundle, rng, count)]
        settings: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        params = SamplingParams(max_tokens=length - 1, ignore_eos=True, repetition_penalty=1.0, seed=seed, **settings)
        answers = llm.generate([[token] for token in first], params)
    return np.array([[t, *a.token_ids] for t, a in zip(first, answers, strict=True)], np.int64)


def rows_at_once(count: int, row_bytes: int) -> int:
    """How many of the chunks are sampled at a time: many, for a step reads all weights; in rounds of one size."""
    most = max(1, min(_MOST_ROWS, _KV_BYTES // row_bytes))
    return math.ceil(count / math.ceil(count / most))


def _ordinary(bundle: Bundle, rng: np.random.Generator, count: int) -> IntArray:
    """Different random tokens, none of them special."""
    manifest = bundle.manifest
    candidates = np.setdiff1d(np.arange(manifest.architecture.vocab_size), manifest.tokens.special)
    return rng.choice(candidates, count, replace=count > len(candidates))


def _read_ids(source: Path, bundle: Bundle) -> IntArray:
    try:
        if source.suffix == ".npy":
            return _integers(np.load(source, allow_pickle=False), source)
        tokenizer = Tokenizer(bundle.path("tokenizer.json"), bundle.manifest.tokens.special)
        text = source.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise QuantizationError(f"{source}: cannot be read as text or tokens ({error}).") from error
    if source.suffix != ".jsonl":
        return np.array(tokenizer.encode(text, add_special_tokens=False), np.int64)
    parts = [tokenizer.encode(part, add_special_tokens=False) for part in _documents(source, text, bundle, tokenizer)]
    return np.array([token for part in parts for token in part], np.int64)


def _integers(array: npt.NDArray[Any], source: Path) -> IntArray:
    if not np.issubdtype(array.dtype, np.integer):
        raise QuantizationError(f"{source}: holds {array.dtype} instead of token ids.")
    return array.astype(np.int64).reshape(-1)


def _documents(source: Path, text: str, bundle: Bundle, tokenizer: Tokenizer) -> Iterator[str]:
    """The text of each line of a .jsonl file; conversations through the chat template."""
    from runtime.chat.template import ChatTemplate

    for number, line in enumerate(filter(str.strip, text.splitlines()), start=1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise QuantizationError(f"{source}: line {number} is not JSON ({error}).") from error
        if isinstance(entry, dict) and isinstance(entry.get("text"), str):
            yield entry["text"]
        elif isinstance(entry, dict) and isinstance(entry.get("messages"), list):
            yield ChatTemplate.open(bundle, tokenizer).render(entry["messages"], add_generation_prompt=False)
        else:
            raise QuantizationError(f'{source}: line {number} has neither a "text" nor "messages".')
