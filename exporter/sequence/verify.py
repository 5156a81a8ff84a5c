"""Check a graph that reads whole texts: against transformers, or texts alone against texts in a batch."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from runtime.bundle.manifest import Manifest, Verification
from runtime.bundle.sequence_task import SequenceTask
from runtime.errors import UnsupportedError, VerificationError

from ..checkpoint import Checkpoint
from ..verify.numpy_graphs import open_session
from ..verify.references import Reference
from ..verify.verify import require_close

Rows = npt.NDArray[np.float32]
_LENGTHS = (24, 3, 11)


@dataclass(frozen=True)
class SequenceReference:
    """transformers' own model of a folder, in a child: this process never loads torch.

    Args:
        source: the folder.
        task: of the manifest.
        answer_tokens: ids that mean yes and no, where no head scores.
    """

    source: str
    task: SequenceTask
    answer_tokens: tuple[int, int | None] | None
    method: Literal["transformers"] = "transformers"

    def answer(self, ids: npt.NDArray[np.int64]) -> Any:
        """Not of sequences for generation."""
        raise NotImplementedError

    def rows(self, texts: Sequence[npt.NDArray[np.int64]]) -> tuple[Rows, list[tuple[str, list[int]]]]:
        """`[texts, width]`; and texts with their ids, special tokens included.

        Raises:
            VerificationError: it cannot run.
        """
        request = {
            "source": self.source,
            "kind": self.task.kind,
            "pooling": self.task.pooling,
            "normalized": self.task.normalized,
            "answer_tokens": self.answer_tokens,
            "texts": [text.tolist() for text in texts],
        }
        with tempfile.TemporaryDirectory() as scratch:
            output = Path(scratch) / "rows.npy"
            command = [sys.executable, "-P", "-m", "exporter.sequence.reference", json.dumps(request), str(output)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own module
            if done.returncode or not output.is_file():
                said = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise VerificationError(
                    f"transformers could not run this checkpoint as a reference: {said}. Pass --verify "
                    "self-consistency to compare texts alone with texts in a batch instead."
                )
            found: Rows = np.load(output)
            samples = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
        return found, samples


def sequence_reference(
    checkpoint: Checkpoint, task: SequenceTask, answer_tokens: tuple[int, int | None] | None
) -> SequenceReference:
    """The reference of an opened folder or GGUF file.

    Raises:
        UnsupportedError: a live module.
    """
    if checkpoint.path is None:
        raise UnsupportedError(
            f"a live module does not say how texts are pooled or scored: export {task.kind} from a Hugging Face folder."
        )
    return SequenceReference(str(checkpoint.path), task, answer_tokens)


def verify_sequences(
    folder: Path, manifest: Manifest, reference: Reference | None, progress: Callable[[str, int, int], None]
) -> tuple[Verification, list[str]]:
    """Run fixed pseudo-random texts of several lengths in one batch, and compare.

    Raises:
        VerificationError: the rows differ by more than the number format explains, or are not finite.
    """
    progress("verifying", 0, 2)
    sizes, random = manifest.architecture, np.random.default_rng(0)
    texts = [random.integers(0, sizes.vocab_size, min(n, sizes.context_length)) for n in _LENGTHS]
    session = open_session(folder / manifest.graphs.prefill.file)
    ours = _batch(session, texts)
    progress("verifying", 1, 2)
    notes: list[str] = []
    if isinstance(reference, SequenceReference):
        (expected, samples), name = reference.rows(texts), "transformers"
        notes = _require_same_tokens(folder, samples)
    else:
        expected, name = np.concatenate([_batch(session, [text]) for text in texts]), "self-consistency"
    difference = require_close(ours, expected, manifest.target.dtype, name)
    progress("verifying", 2, 2)
    method: Any = name
    return Verification(method, difference), notes


def _require_same_tokens(folder: Path, samples: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
    """Special tokens included: the last one is what most models pool at."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text, expected in samples:
        found = tokenizer.encode(text).ids
        if found != list(expected):
            return [
                f"{text!r} is {found} by the bundle's tokenizer.json, and {list(expected)} by transformers' tokenizer. "
                "If that is what the model was trained with, save it anew by AutoTokenizer.from_pretrained(folder)"
                ".save_pretrained(folder), and export again."
            ]
    return []


def _batch(session: Any, texts: Sequence[npt.NDArray[np.int64]]) -> Rows:
    lengths = np.array([len(text) for text in texts])
    ids = np.zeros((len(texts), lengths.max()), np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    feeds = {
        "input_ids": ids,
        "seqlens_k": (lengths - 1).astype(np.int32),
        "total_sequence_length": np.array(lengths.max(), np.int32),
    }
    rows: Rows = session.run(None, feeds)[0]
    return rows
