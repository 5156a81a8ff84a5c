"""POST /rerank, /score and /classify: how well documents fit a query, and what a classifier says of texts."""

from typing import Any

from ...encoder.model import Rows
from ..openai.errors import ApiError
from ..openai.parse import parse
from ..request_log import RequestLog
from ..state import AppState
from .embeddings import usage
from .endpoint import MOST_TEXTS, Work, listed_input
from .protocol import IGNORED, ClassifyFields, RerankFields, ScoreFields

# What Jina and Cohere name otherwise, or what means nothing here.
_RERANK_IGNORED = IGNORED | {"rank_fields", "priority"}


def rerank(service: AppState, body: bytes) -> Work:
    """Jina's and Cohere's."""
    fields = parse(RerankFields, body, _RERANK_IGNORED, {"max_chunks_per_doc": "documents are read whole"})
    served = service.find_encoder(fields.model, "score")
    served.encoder.require_one_score()
    if not fields.documents or len(fields.documents) > MOST_TEXTS:
        raise ApiError(
            400, f"documents: from 1 to {MOST_TEXTS} are taken, got {len(fields.documents)}.", param="documents"
        )
    documents = [_document(one, i) for i, one in enumerate(fields.documents)]
    if fields.top_n is not None and fields.top_n < 1:
        raise ApiError(400, f"top_n must be at least 1, got {fields.top_n}.", param="top_n")
    truncate = bool(fields.truncate)
    pair = served.encoder.reader.pair
    texts = [pair(fields.query, text, fields.instruction, truncate=truncate) for text in documents]

    def answer(rows: Rows, record: RequestLog) -> dict[str, Any]:
        scores = served.encoder.shown(rows)[:, 0]
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[: fields.top_n]
        shown = fields.return_documents is not False
        results = [
            {"index": i, "relevance_score": float(scores[i])} | ({"document": {"text": documents[i]}} if shown else {})
            for i in order
        ]
        return {"id": f"rerank-{record.id}", "model": served.name, "usage": usage(texts), "results": results}

    return Work(served, texts, answer, fields.timeout)


def score(service: AppState, body: bytes) -> Work:
    """vLLM's."""
    fields = parse(ScoreFields, body, IGNORED, {})
    served = service.find_encoder(fields.model, "score")
    served.encoder.require_one_score()
    queries, documents = listed_input(fields.text_1, "text_1"), listed_input(fields.text_2, "text_2")
    if len(queries) == 1:
        queries *= len(documents)
    if len(queries) != len(documents):
        raise ApiError(
            400, f"text_1 has {len(queries)} texts and text_2 {len(documents)}: give as many, or one in text_1.",
            param="text_1",
        )  # fmt: skip
    pair, truncate = served.encoder.reader.pair, bool(fields.truncate)
    texts = [pair(*both, fields.instruction, truncate=truncate) for both in zip(queries, documents, strict=True)]

    def answer(rows: Rows, record: RequestLog) -> dict[str, Any]:
        scores = served.encoder.shown(rows)[:, 0]
        data = [{"index": i, "object": "score", "score": float(one)} for i, one in enumerate(scores)]
        return _listed(served.name, "score", record, data, texts)

    return Work(served, texts, answer, fields.timeout)


def classify(service: AppState, body: bytes) -> Work:
    """vLLM's."""
    fields = parse(ClassifyFields, body, IGNORED, {})
    served = service.find_encoder(fields.model, "score")
    task, reader = served.encoder.task, served.encoder.reader
    labels = task.labels or tuple(f"LABEL_{i}" for i in range(task.width))
    texts = [reader.ids(text, truncate=bool(fields.truncate)) for text in listed_input(fields.input)]

    def answer(rows: Rows, record: RequestLog) -> dict[str, Any]:
        shown = served.encoder.shown(rows)
        data = [
            {
                "index": i,
                "label": labels[int(row.argmax())],
                "probs": [float(p) for p in row],
                "num_classes": task.width,
            }
            for i, row in enumerate(shown)
        ]
        return _listed(served.name, "classify", record, data, texts)

    return Work(served, texts, answer, fields.timeout)


def _listed(
    model: str, kind: str, record: RequestLog, data: list[dict[str, Any]], texts: list[list[int]]
) -> dict[str, Any]:
    head = {"id": f"{kind}-{record.id}", "object": "list", "created": record.created, "model": model}
    return {**head, "data": data, "usage": usage(texts)}


def _document(value: str | dict[str, Any], place: int) -> str:
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str) or (isinstance(value, dict) and value.keys() != {"text"}):
        raise ApiError(
            400, f'documents[{place}] must be a text, or an object with "text" alone.', param=f"documents[{place}]"
        )
    return text
