"""Run a bundle's graphs, and transformers, on the same tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort
import pytest

from exporter.checkpoint import open_checkpoint
from exporter.verify.numpy_graphs import NumpyRunner
from exporter.verify.reference import reference_logits
from runtime.bundle.bundle import open_bundle
from runtime.ort.session import operator_has_input

PASTS = (0, 20, 0, 30, 9)
NEW = (7, 3, 40, 12, 0)
CAPACITY = 128


class Pair:
    """Our logits and transformers', of one checkpoint."""

    def __init__(self, checkpoint: Path, bundle: Path) -> None:
        self.checkpoint = checkpoint
        self.manifest = open_bundle(bundle).manifest
        self.runner = NumpyRunner(bundle, self.manifest, min(self.manifest.architecture.context_length, 128))

    def ids(self, count: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, self.manifest.architecture.vocab_size, count)

    def ours(self, ids: np.ndarray, prefill: int) -> np.ndarray:
        """Logits after the first `prefill` tokens and after every further one, decoded one by one."""
        self.runner.reset()
        rows = [self.runner.prefill(ids[:prefill])]
        return np.stack(rows + [self.runner.decode(int(token)) for token in ids[prefill:]])

    def batch(self, ids: np.ndarray, lengths: Sequence[int], index: Sequence[tuple[int, int]]) -> np.ndarray:
        """Logits at `index` (row, position) of one prefill of right-padded rows `[batch, sequence]`."""
        feeds = {
            "input_ids": ids.astype(np.int64),
            "seqlens_k": np.array(lengths, np.int32) - 1,
            "total_sequence_length": np.array(max(lengths), np.int32),
            "logits_index": np.array(index, np.int64),
        }
        for port in self.manifest.graphs.prefill.inputs:
            if port.role.startswith("past"):
                shape = [len(ids), *(ids.shape[1] if size == "capacity" else size for size in port.shape[1:])]
                feeds[port.name] = np.zeros(shape, port.dtype)
        return self.runner._session("prefill").run(["logits"], feeds)[0]

    def theirs(self, ids: np.ndarray) -> np.ndarray:
        return reference_logits(open_checkpoint(self.checkpoint), ids.tolist())


@pytest.fixture(scope="session")
def pair(make_bundle):
    """Export a checkpoint and put transformers beside it."""
    return lambda checkpoint, **options: Pair(checkpoint, make_bundle(checkpoint, **options))


class Alone(NamedTuple):
    """One of several sequences: what their common run gave, and what its own gave."""

    logits: tuple[np.ndarray, np.ndarray]
    cache: list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="session")
def ragged_chunks(make_bundle):
    """Chunks of five sequences, the last one idle: in one run of a graph with query_seqlens, and by one without."""

    if not operator_has_input("GroupQueryAttention", "query_seqlens"):
        pytest.skip("needs ONNX Runtime 1.32")

    def ragged_chunks(checkpoint: Path) -> list[Alone]:
        wanted = _each_alone(make_bundle(checkpoint))
        logits, cache = _together(make_bundle(checkpoint, target_ort="1.32"), [before for before, _, _ in wanted])
        return [
            Alone(
                (logits[row] if NEW[row] else expected, expected),
                [(cache[name][row, :, :end], after[name][0, :, :end]) for name in cache],
            )
            for row, (_, after, expected) in enumerate(wanted)
            for end in [PASTS[row] + NEW[row]]
        ]

    return ragged_chunks


def _sequences(vocab_size):
    rng = np.random.default_rng(1)
    return [rng.integers(0, vocab_size, past + new) for past, new in zip(PASTS, NEW, strict=True)]


def _each_alone(bundle):
    """Of each sequence: the cache before and after its chunk, and the logits after it."""
    runner = NumpyRunner(bundle, open_bundle(bundle).manifest, CAPACITY)
    results = []
    for tokens, past in zip(_sequences(runner.manifest.architecture.vocab_size), PASTS, strict=True):
        runner.reset()
        logits = runner.prefill(tokens[:past]) if past else np.zeros(0)
        before = runner.cache
        logits = runner.prefill(tokens[past:]) if len(tokens) > past else logits
        results.append((before, runner.cache, logits))
    return results


def _together(bundle, before):
    """All chunks in one run; logits `[5, V]` and the cache after it."""
    manifest = open_bundle(bundle).manifest
    ids, new = np.full((len(NEW), max(NEW)), 3), np.array(NEW)
    for row, tokens, past in zip(ids, _sequences(manifest.architecture.vocab_size), PASTS, strict=True):
        row[: len(tokens) - past] = tokens[past:]
    ends = np.array(PASTS) + new
    cache = {name: np.concatenate([one[name] for one in before]) for name in before[0]}
    feeds = {
        "input_ids": ids,
        "seqlens_k": (ends - 1).astype(np.int32),
        "query_seqlens": new.astype(np.int32),
        "total_sequence_length": np.array(ends.max(), np.int32),
        "logits_index": np.stack([np.arange(len(NEW)), np.maximum(new - 1, 0)], axis=1),
    }
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")  # as NumpyRunner does: other bits otherwise
    session = ort.InferenceSession(str(bundle / "prefill.onnx"), options)
    logits, *presents = session.run(None, feeds | cache)
    return logits, dict(zip(cache, presents, strict=True))
