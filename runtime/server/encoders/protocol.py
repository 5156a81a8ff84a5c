"""The bodies of requests for embeddings and scores, field by field, by the rules that all routes share."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..openai.protocol import MAX_ID, about

IGNORED = frozenset({"user", "store", "metadata", "service_tier", "safety_identifier", "request_id", "keep_alive"})
MODEL = about("Which model; may be left out where there is only one of this kind.")
TRUNCATE = about("Leave out the end of texts that are too long. Default: false, which refuses them.")


@dataclass(frozen=True, kw_only=True)
class EmbeddingFields:
    """POST /v1/embeddings."""

    model: str | None = field(default=None, metadata=MODEL)
    input: str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...] = field(
        metadata=about("A text, several texts, token ids, or several lists of them; at most 2048.")
    )
    encoding_format: Literal["float", "base64"] | None = field(
        default=None, metadata=about("Numbers, or the little-endian bytes of float32 in base64. Default: float.")
    )
    dimensions: int | None = field(default=None, metadata=about("Dimensions to keep of each vector.", 1, MAX_ID))
    prompt_name: str | None = field(
        default=None, metadata=about("Which of the model's prompts stands in front of each text. Not OpenAI's.")
    )
    prompt: str | None = field(default=None, metadata=about("A text to stand in front instead. Not OpenAI's."))
    truncate: bool | None = field(default=None, metadata=TRUNCATE)
    timeout: float | None = field(default=None, metadata=about("Seconds it may take. Not OpenAI's.", 0, 86400))


@dataclass(frozen=True, kw_only=True)
class RerankFields:
    """POST /rerank and /v1/rerank, as Jina and Cohere have it."""

    model: str | None = field(default=None, metadata=MODEL)
    query: str = field(metadata=about("What is looked for."))
    documents: tuple[str | dict[str, Any], ...] = field(
        metadata=about('What was found: texts, or objects with "text"; at most 2048.')
    )
    top_n: int | None = field(default=None, metadata=about("Number of documents to return. Default: all.", 1, MAX_ID))
    return_documents: bool | None = field(default=None, metadata=about("Send the texts back. Default: true."))
    instruction: str | None = field(default=None, metadata=about("The task in words, where the model takes one."))
    truncate: bool | None = field(default=None, metadata=TRUNCATE)
    timeout: float | None = field(default=None, metadata=about("Seconds it may take.", 0, 86400))


@dataclass(frozen=True, kw_only=True)
class ScoreFields:
    """POST /score and /v1/score, as vLLM has it."""

    model: str | None = field(default=None, metadata=MODEL)
    text_1: str | tuple[str, ...] = field(metadata=about("A query, or as many as texts in text_2."))
    text_2: str | tuple[str, ...] = field(metadata=about("A document, or several."))
    instruction: str | None = field(default=None, metadata=about("The task in words, where the model takes one."))
    truncate: bool | None = field(default=None, metadata=TRUNCATE)
    timeout: float | None = field(default=None, metadata=about("Seconds it may take.", 0, 86400))


@dataclass(frozen=True, kw_only=True)
class ClassifyFields:
    """POST /classify, as vLLM has it."""

    model: str | None = field(default=None, metadata=MODEL)
    input: str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...] = field(
        metadata=about("A text, several texts, token ids, or several lists of them; at most 2048.")
    )
    truncate: bool | None = field(default=None, metadata=TRUNCATE)
    timeout: float | None = field(default=None, metadata=about("Seconds it may take.", 0, 86400))


@dataclass(frozen=True, kw_only=True)
class OllamaEmbedFields:
    """POST /api/embed."""

    model: str | None = field(
        default=None,
        metadata=about("Which model; may be left out where there is only one. `:latest` behind a name means nothing."),
    )
    input: str | tuple[str, ...] = field(metadata=about("A text, or several."))
    truncate: bool | None = field(default=None, metadata=about("Leave out the end of long texts. Default: true."))
    dimensions: int | None = field(default=None, metadata=about("Dimensions to keep of each vector.", 1, MAX_ID))
    options: dict[str, Any] | None = field(default=None, metadata=about("Of hardware; changes no answer."))


@dataclass(frozen=True, kw_only=True)
class OllamaEmbeddingFields:
    """POST /api/embeddings, which Ollama keeps for old clients."""

    model: str | None = field(
        default=None,
        metadata=about("Which model; may be left out where there is only one. `:latest` behind a name means nothing."),
    )
    prompt: str = field(metadata=about("A text."))
    options: dict[str, Any] | None = field(default=None, metadata=about("Of hardware; changes no answer."))
