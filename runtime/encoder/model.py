"""A bundle ready to read texts: its tokenizer, its graph and the thread that runs it."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..bundle.bundle import open_bundle
from ..bundle.sequence_task import Kind, SequenceTask, require_task
from ..engine.scheduling.waiting import WaitingLimit
from ..errors import RequestError
from ..options import EngineOptions
from ..ort.sequence_runner import SequenceRunner
from ..ort.session import choose_provider
from ..text.tokenizer import Tokenizer
from .engine import EncoderEngine
from .texts import TextReader

Rows = npt.NDArray[np.float32]


class Encoder:
    """What Embedder, Reranker and the server share.

    Attributes:
        bundle: the opened bundle.
        task: what it gives.
        tokenizer: its tokenizer.
        reader: makes token ids of texts.
        engine: runs them; started.

    Raises:
        BundleError: the folder is not a bundle of this kind.
        ProviderError: the provider cannot start.
    """

    def __init__(self, path: str | Path, kind: Kind, provider: str = "auto", options: EngineOptions | None = None):
        self.options = options or EngineOptions()
        self.bundle = open_bundle(path)
        self.task: SequenceTask = require_task(self.bundle, kind)
        manifest = self.bundle.manifest
        runner = SequenceRunner(self.bundle, choose_provider(provider, self.bundle), self.options.threads)
        self.tokenizer = Tokenizer(self.bundle.path("tokenizer.json"), manifest.tokens.special)
        self.reader = TextReader(self.task, self.tokenizer, manifest.architecture.vocab_size)
        self.engine = EncoderEngine(runner, WaitingLimit(self.options.max_queue, self.options.max_queue_tokens))
        self.engine.start()

    def submit(self, texts: Sequence[Sequence[int]]) -> "Future[Rows]":
        """The rows of texts as token ids; see EncoderEngine."""
        return self.engine.submit(texts)

    def close(self) -> None:
        """End the thread."""
        self.engine.close()

    def vectors(self, rows: Rows, dimensions: int | None = None) -> Rows:
        """The first `dimensions` numbers of each embedding, of length 1 again where the whole one is.

        Raises:
            RequestError: fewer than one, or more than there are.
        """
        if dimensions is None or dimensions == self.task.width:
            return rows
        self.check_dimensions(dimensions)
        short = rows[:, :dimensions]
        if not self.task.normalized:
            return short
        norms = np.sqrt((short.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
        scaled: Rows = (short / np.maximum(norms, 1e-12)).astype(np.float32)
        return scaled

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raise RequestError unless a vector can be cut to this size."""
        most = self.task.width
        if dimensions is not None and (isinstance(dimensions, bool) or not 1 <= dimensions <= most):
            raise RequestError(
                f"dimensions must be from 1 to {most}, the size of this model's vectors; got {dimensions!r}."
            )
        sizes = self.task.sizes
        if sizes is not None and dimensions not in (None, most, *sizes):
            taken = ", ".join(map(str, sorted({*sizes, most})))
            raise RequestError(f"dimensions must be one of {taken}: this model is made for these; got {dimensions}.")

    def shown(self, rows: Rows) -> Rows:
        """Raw scores as users see them: by the activation that the bundle names."""
        exact = rows.astype(np.float64)
        if self.task.activation == "sigmoid":
            exact = np.where(exact >= 0, 1 / (1 + np.exp(-np.abs(exact))), 1 - 1 / (1 + np.exp(-np.abs(exact))))
        elif self.task.activation == "softmax":
            powers = np.exp(exact - exact.max(axis=1, keepdims=True))
            exact = powers / powers.sum(axis=1, keepdims=True)
        shown: Rows = exact.astype(np.float32)
        return shown

    def require_one_score(self) -> None:
        """Raise RequestError for a classifier of several labels, which ranks nothing."""
        if self.task.width != 1:
            labels = ", ".join(self.task.labels) or f"{self.task.width} labels"
            raise RequestError(f"This model scores {labels}, not how well a document fits a query. Use it to classify.")
