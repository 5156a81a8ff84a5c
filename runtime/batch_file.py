"""Offline batches: answers a file of requests, one JSON object a line, into a file of answers.

An answer is appended as soon as it is complete, in whatever order. The same call again goes on where the last one
ended: it keeps the answers, drops a half-written line, and tries again what had failed.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .batch import Batch
from .batch_lines import BatchDefaults, BatchLine, batch_request
from .client import Model, Request
from .errors import OptionError, RequestError
from .outputs import Completion, completion_json

Progress = Callable[["BatchCounts"], None]


@dataclass
class BatchCounts:
    """How far a batch is; `kept` were answered by an earlier call."""

    total: int = 0
    kept: int = 0
    answered: int = 0
    failed: int = 0
    first_error: str | None = None


class BatchFile:
    """One run of a batch.

    Args:
        model: answers.
        source: the input: lines with `prompt` (a text or token ids) or `messages` and `tools`; optionally `id`, and
            any of the sampling parameters. Blank lines are skipped.
        target: the output: a line per request with its `line` number, its `id`, and the answer or an `error`.
        defaults: what holds for lines that do not say otherwise.

    Raises:
        OptionError: a file cannot be read or written, or the output answers another input or other defaults.
    """

    def __init__(self, model: Model, source: Path, target: Path, defaults: BatchDefaults) -> None:
        self._model = model
        self._source = source
        self._target = target
        self._defaults = defaults
        self._asked: dict[int, BatchLine] = {}
        self._ids: dict[int, Any] = {}
        self.counts = BatchCounts()

    def run(self, progress: Progress | None = None) -> BatchCounts:
        """Answer every line that has no answer yet; leaving it by an exception keeps what is answered."""
        progress = progress or (lambda _: None)
        done = dict(_answers(self._target))
        self._check(done)
        _drop_failures(self._target)
        with _opened(self._target, "ab") as output:
            for place, completion in Batch(self._model).stream(self._requests(done, output, progress)):
                self._write(output, self._asked.pop(place), self._ids.pop(place), _answer(completion))
                progress(self.counts)
            os.fsync(output.fileno())
        return self.counts

    def _check(self, done: dict[int, str]) -> None:
        lines = {line.number: line.digest(self._defaults) for line in _lines(self._source)}
        self.counts = BatchCounts(total=len(lines), kept=len(done))
        strange = [number for number, digest in done.items() if lines.get(number) != digest]
        if strange:
            raise OptionError(
                f"{self._target} answers another input, or was made with other options: its line {strange[0]} does not "
                f"belong to line {strange[0]} of {self._source}. Choose another --output, or delete it."
            )

    def _requests(self, done: dict[int, str], output: IO[bytes], progress: Progress) -> Iterator[Request]:
        place = 0
        for line in _lines(self._source):
            if line.number in done:
                continue
            entry: dict[str, Any] = {}
            try:
                entry = line.parse()
                request = batch_request(entry, self._defaults, self._model)
            except RequestError as error:  # this line's fault alone
                self._write(output, line, entry.get("id"), {"error": str(error)})
                progress(self.counts)
                continue
            self._asked[place], self._ids[place] = line, entry.get("id")
            place += 1
            yield request

    def _write(self, output: IO[bytes], line: BatchLine, name: Any, answer: dict[str, Any]) -> None:
        record = {"line": line.number, "id": name, "digest": line.digest(self._defaults), **answer}
        output.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        output.flush()
        if answer.get("error") is None:
            self.counts.answered += 1
        else:
            self.counts.failed += 1
            self.counts.first_error = self.counts.first_error or f"line {line.number}: {answer['error']}"


def _answer(completion: Completion) -> dict[str, Any]:
    plain = completion_json(completion)
    return plain if completion.error is None else {"error": plain["error"]}


def _lines(source: Path) -> Iterator[BatchLine]:
    with _opened(source, "rb") as file:
        for number, content in enumerate(file, 1):
            if content.strip():
                yield BatchLine(number, content)


def _answers(target: Path) -> Iterator[tuple[int, str]]:
    """Line number and digest of every answer in the output, if there is one."""
    for record, _ in _records(target):
        if record.get("error") is None:
            yield record["line"], record["digest"]


def _drop_failures(target: Path) -> None:
    """Keep only answers in the output: failed lines are tried again, and the last line may be incomplete."""
    clean = target.with_name(target.name + ".part")
    with _opened(clean, "wb") as new:
        for record, content in _records(target):
            if record.get("error") is None:
                new.write(content)
    clean.replace(target)


def _records(target: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    if not target.exists():
        return
    with _opened(target, "rb") as file:
        for content in file:
            if content.endswith(b"\n"):
                yield _record(content, target), content


def _record(content: bytes, target: Path) -> dict[str, Any]:
    try:
        record = json.loads(content)
    except ValueError:
        record = None
    if not (isinstance(record, dict) and isinstance(record.get("line"), int) and "digest" in record):
        raise OptionError(f"{target} exists and is not the output of a batch. Choose another --output.")
    return record


def _opened(path: Path, mode: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise OptionError(f"{path}: cannot be opened ({error.strerror}).") from error
