"""POST /v1/embeddings, /api/embed and /api/embeddings: vectors of texts."""

import base64
import time
from typing import Any

import numpy as np

from ...encoder.model import Rows
from ..ollama.requests import model_name
from ..openai.errors import ApiError
from ..openai.parse import parse
from ..request_log import RequestLog
from ..state import AppState
from .endpoint import Work, listed_input
from .protocol import IGNORED, EmbeddingFields, OllamaEmbeddingFields, OllamaEmbedFields
from .served import ServedEncoder


def embeddings(service: AppState, body: bytes) -> Work:
    """OpenAI's."""
    fields = parse(EmbeddingFields, body, IGNORED, {})
    served = service.find_encoder(fields.model, "embed")
    if fields.prompt is not None and fields.prompt_name is not None:
        raise ApiError(400, "prompt and prompt_name: give one of them.", param="prompt")
    served.encoder.check_dimensions(fields.dimensions)
    reader = served.encoder.reader
    front = reader.prompt(fields.prompt_name) if fields.prompt is None else fields.prompt
    texts = [reader.ids(text, front, truncate=bool(fields.truncate)) for text in listed_input(fields.input)]

    def answer(rows: Rows, _: RequestLog) -> dict[str, Any]:
        vectors = served.encoder.vectors(rows, fields.dimensions)
        shown = _base64 if fields.encoding_format == "base64" else _numbers
        data = [{"object": "embedding", "index": i, "embedding": shown(row)} for i, row in enumerate(vectors)]
        return {"object": "list", "data": data, "model": served.name, "usage": usage(texts)}

    return Work(served, texts, answer, fields.timeout)


def ollama_embed(service: AppState, body: bytes) -> Work:
    """Ollama's, for a text or several."""
    fields = parse(OllamaEmbedFields, body, IGNORED, {})
    served = service.find_encoder(model_name(fields.model), "embed")
    served.encoder.check_dimensions(fields.dimensions)
    texts = _ollama_texts(served, listed_input(fields.input), fields.truncate is not False)
    started = time.monotonic_ns()

    def answer(rows: Rows, _: RequestLog) -> dict[str, Any]:
        vectors = served.encoder.vectors(rows, fields.dimensions)
        spent = time.monotonic_ns() - started
        count = sum(map(len, texts))
        return {"model": fields.model or served.name, "embeddings": [_numbers(row) for row in vectors],
                "total_duration": spent, "load_duration": 0, "prompt_eval_count": count}  # fmt: skip

    return Work(served, texts, answer)


def ollama_embeddings(service: AppState, body: bytes) -> Work:
    """Ollama's old one, for a single text."""
    fields = parse(OllamaEmbeddingFields, body, IGNORED, {})
    served = service.find_encoder(model_name(fields.model), "embed")
    texts = _ollama_texts(served, [fields.prompt], True)
    return Work(served, texts, lambda rows, _: {"embedding": _numbers(rows[0])})


def usage(texts: list[list[int]]) -> dict[str, int]:
    """OpenAI's count of tokens."""
    count = sum(map(len, texts))
    return {"prompt_tokens": count, "total_tokens": count}


def _ollama_texts(served: ServedEncoder, texts: list[str], truncate: bool) -> list[list[int]]:
    reader = served.encoder.reader
    return [reader.ids(text, reader.prompt(None), truncate=truncate) for text in texts]


def _numbers(row: Rows) -> list[float]:
    """As short as they can be written and read back the same in float32."""
    return [float(np.format_float_scientific(number, unique=True, trim="0")) for number in row]


def _base64(row: Rows) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")
