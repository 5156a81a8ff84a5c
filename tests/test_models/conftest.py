"""Run a bundle's graphs, and transformers, on the same tokens."""

from pathlib import Path

import numpy as np
import pytest

from exporter.checkpoint import open_checkpoint
from exporter.graphs_in_numpy import NumpyRunner
from exporter.reference import reference_logits
from runtime.bundle import open_bundle


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

    def theirs(self, ids: np.ndarray) -> np.ndarray:
        return reference_logits(open_checkpoint(self.checkpoint), ids.tolist())


@pytest.fixture(scope="session")
def pair(make_bundle):
    """Export a checkpoint and put transformers beside it."""
    return lambda checkpoint, **options: Pair(checkpoint, make_bundle(checkpoint, **options))
