"""One run of the graph of an embedding model or a reranker: whole texts in, a row of numbers each out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..bundle.bundle import Bundle
from .binding import FloatArray
from .providers import ProviderName
from .session import check_session, open_session, translated


class SequenceRunner:
    """The graph in a session.

    Args:
        bundle: with a task.
        provider: where it runs.
        threads: of one run; None is the number of cores.
        graph: the graph's file where it is not the bundle's own.
    """

    def __init__(
        self, bundle: Bundle, provider: ProviderName, threads: int | None = None, graph: Path | None = None
    ) -> None:
        described = bundle.manifest.graphs.prefill
        self._context = bundle.manifest.architecture.context_length
        self._names: dict[str, str] = {port.role: port.name for port in described.inputs}
        self._session = open_session(graph or bundle.path(described.file), provider, threads)
        check_session(self._session, described)

    def rows(self, texts: Sequence[Sequence[int]]) -> FloatArray:
        """`[texts, width]` of token ids, each at most as long as the context.

        A text's row is the same to the bit in any company: on CPUs rows never mix, sums run along the positions, and
        the width below is even, because attention computes queries in blocks of an even size, and a block of one query
        by another kernel, whose last bits differ.

        Raises:
            ExecutionError: ONNX Runtime failed.
        """
        lengths = np.array([len(text) for text in texts])
        width = min(int(lengths.max() + 1) // 2 * 2, self._context)
        ids = np.zeros((len(texts), width), np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = text
        feeds = {
            "input_ids": ids,
            "seqlens_k": (lengths - 1).astype(np.int32),
            "total_sequence_length": np.array(width, np.int32),
        }
        with translated("computing embeddings or scores"):
            rows: FloatArray = self._session.run(None, {self._names[role]: value for role, value in feeds.items()})[0]
        return rows
