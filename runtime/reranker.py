"""Reranker: how well documents fit a query, and what a classifier says of texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from .encoder.model import Encoder
from .encoder.texts import Text
from .errors import RequestError
from .options import EngineOptions


@dataclass(frozen=True)
class RankedDocument:
    """A document with its place in the list that was given, and its score."""

    index: int
    score: float
    document: str


class Reranker:
    """A reranker or classifier; its methods may be called from several threads, whose texts then run side by side.

    Args:
        path: the folder of a bundle that `onnxlm export --task score` wrote.
        provider: "cpu", "cuda", or "auto" for the one that the bundle was built for.
        options: `threads`, `max_queue` and `max_queue_tokens` count.

    Raises:
        BundleError: the folder is not a bundle of a reranker or classifier.
        ProviderError: the provider cannot start; the message says what is missing.

    Example:
        >>> with runtime.Reranker("reranker") as reranker:
        ...     for found in reranker.rerank("capital of China", ["Gravity attracts.", "Beijing is the capital."]):
        ...         print(found.index, found.score, found.document)
    """

    def __init__(self, path: str | Path, provider: str = "auto", options: EngineOptions | None = None) -> None:
        self.encoder = Encoder(path, "score", provider, options)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        top_n: int | None = None,
        truncate: bool = False,
    ) -> list[RankedDocument]:
        """The documents, best first; equal scores keep their order.

        Args:
            query: what is looked for.
            documents: what was found.
            instruction: the task in words, where the model's pairs have a place for it; None is its own.
            top_n: return only this number of documents.
            truncate: leave out the end of a document that is too long, instead of refusing it.

        Raises:
            RequestError, PromptTooLongError: a text cannot be read, or the model is a classifier of several labels.
            ExecutionError: a run failed.
        """
        if top_n is not None and top_n < 1:
            raise RequestError(f"top_n must be at least 1, got {top_n!r}.")
        pairs = [(query, document) for document in documents]
        scores = self.score(pairs, instruction=instruction, truncate=truncate)
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        return [RankedDocument(i, scores[i], documents[i]) for i in order[:top_n]]

    def score(
        self, pairs: Sequence[tuple[str, str]], *, instruction: str | None = None, truncate: bool = False
    ) -> list[float]:
        """The score of each pair of query and document, in their order; arguments and errors as for `rerank`."""
        encoder = self.encoder
        encoder.require_one_score()
        ids = [encoder.reader.pair(*pair, instruction, truncate=truncate) for pair in pairs]
        return [float(row[0]) for row in encoder.shown(encoder.submit(ids).result())] if ids else []

    def classify(self, texts: str | Sequence[Text], *, truncate: bool = False) -> list[dict[str, float]]:
        """What the model gives each label, text by text; labels without names are called LABEL_0, LABEL_1, …"""
        encoder = self.encoder
        listed: Sequence[Text] = [texts] if isinstance(texts, str) else texts
        ids = [encoder.reader.ids(text, truncate=truncate) for text in listed]
        labels = encoder.task.labels or [f"LABEL_{i}" for i in range(encoder.task.width)]
        if not ids:
            return []
        rows = encoder.shown(encoder.submit(ids).result())
        return [dict(zip(labels, map(float, row), strict=True)) for row in rows]

    def close(self) -> None:
        """Release threads and memory."""
        self.encoder.close()

    def __enter__(self) -> "Reranker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
