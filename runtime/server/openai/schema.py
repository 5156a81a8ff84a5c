"""The published OpenAPI document, made from the same dataclasses that requests are read with."""

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ...host.packages import own_version
from ..anthropic import protocol as anthropic_fields
from ..anthropic.protocol import CountFields, MessageFields
from ..encoders import protocol as encoder_fields
from ..encoders.protocol import (
    ClassifyFields,
    EmbeddingFields,
    OllamaEmbeddingFields,
    OllamaEmbedFields,
    RerankFields,
    ScoreFields,
)
from ..ollama import protocol as ollama
from . import parse as chat_fields
from .protocol import ChatFields, CompletionFields, DetokenizeFields, TokenizeFields
from .responses import protocol as response_fields
from .responses.protocol import ResponseFields

_INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer", **_INT64},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_IGNORED: Mapping[Any, frozenset[str]] = {
    **dict.fromkeys((ChatFields, CompletionFields), chat_fields.IGNORED),
    ResponseFields: response_fields.IGNORED,
    **dict.fromkeys(
        (ClassifyFields, EmbeddingFields, OllamaEmbedFields, OllamaEmbeddingFields, RerankFields, ScoreFields),
        encoder_fields.IGNORED,
    ),
    **dict.fromkeys((CountFields, MessageFields), anthropic_fields.IGNORED),
    **dict.fromkeys((ollama.ChatFields, ollama.GenerateFields), ollama.IGNORED),
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
_OLLAMA_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_OF_GUARDS = ("401", "403")  # said before the route is looked at, in OpenAI's form everywhere
# Before OpenAPI 3.2 the schema of an event stream is that of one event.
_EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "description": "A chunk as JSON; at the end of chats and completions: [DONE]."},
    },
}
_ERRORS = {
    "400": "The request is wrong; the message says how.",
    "401": "An API key is needed.",
    "403": "The page's origin is not allowed.",
    "404": "No such model, or no such response.",
    "408": "It took too long.",
    "413": "The body is too large.",
    "415": "The body is not declared as JSON.",
    "429": "The queue is full; try again after Retry-After seconds.",
    "500": "The server failed.",
    "501": "A package is not installed on the server.",
    "503": "The server is shutting down or broken.",
}


@functools.cache
def document(*, keys: bool) -> dict[str, Any]:
    """The document; with `keys`, it asks for an API key."""
    paths = {
        "/v1/chat/completions": _post("Answer a conversation.", ChatFields, _ANSWER, stream=True),
        "/v1/completions": _post("Continue a prompt.", CompletionFields, _ANSWER, stream=True),
        "/v1/responses": _post("Answer a conversation in items.", ResponseFields, _RESPONSE, stream=True),
        "/v1/responses/{id}": _stored("response", _RESPONSE) | _stored("response", _DELETED, "delete"),
        "/v1/responses/{id}/input_items": _stored("response's input", _object(object="string", data="array")),
        "/v1/embeddings": _post("Vectors of texts.", EmbeddingFields, _LISTED),
        **dict.fromkeys(
            ("/rerank", "/v1/rerank", "/v2/rerank"),
            _post("Documents by how well they fit.", RerankFields, _RERANKED),
        ),
        **dict.fromkeys(("/score", "/v1/score"), _post("Scores of pairs.", ScoreFields, _LISTED)),
        **dict.fromkeys(("/classify", "/v1/classify"), _post("Labels of texts.", ClassifyFields, _LISTED)),
        "/tokenize": _post("Token ids of a text.", TokenizeFields, _object(count="integer", tokens="array")),
        "/detokenize": _post("The text of token ids.", DetokenizeFields, _object(prompt="string")),
        "/v1/models": _get("The models.", _object(object="string", data="array")),
        "/health": _get("Whether the engines live.", _object(status="string"), "503"),
        "/ready": _get("Whether new requests are welcome.", _object(status="string"), "503"),
        "/version": _get("The server's version.", _object(version="string")),
        "/status": _get("Figures of this moment.", _object(models="array", inside="integer")),
        **_anthropic_paths(),
        **_ollama_paths(),
    }
    security = {"security": [{"key": []}], "components": {"securitySchemes": {"key": _BEARER}}} if keys else {}
    info = {"title": "onnxlm", "version": own_version()}
    return {"openapi": "3.1.0", "info": info, "paths": paths, **security}


def _anthropic_paths() -> dict[str, Any]:
    message = _object(id="string", type="string", role="string", content="array", usage="object")
    return {
        "/v1/messages": _post("Answer a conversation.", MessageFields, message, stream=True, error=_ANTHROPIC_ERROR),
        "/v1/messages/count_tokens": _post(
            "Count the tokens of a prompt.", CountFields, _object(input_tokens="integer"), error=_ANTHROPIC_ERROR
        ),
    }


def _ollama_paths() -> dict[str, Any]:
    answered = {"model": "string", "created_at": "string", "done": "boolean"}
    chat, text = _object(**answered, message="object"), _object(**answered, response="string")
    vectors = _object(model="string", embeddings="array")
    shown = _object(details="object", model_info="object", capabilities="array", template="string")
    return {
        "/api/chat": _post("Answer a conversation.", ollama.ChatFields, chat, lines=True, error=_OLLAMA_ERROR),
        "/api/generate": _post("Answer a prompt.", ollama.GenerateFields, text, lines=True, error=_OLLAMA_ERROR),
        "/api/show": _post("What a model is.", ollama.ShowFields, shown, error=_OLLAMA_ERROR),
        "/api/embed": _post("Vectors of texts.", OllamaEmbedFields, vectors, error=_OLLAMA_ERROR),
        "/api/embeddings": _post(
            "The vector of a text.", OllamaEmbeddingFields, _object(embedding="array"), error=_OLLAMA_ERROR
        ),
        "/api/tags": _get("The models.", _object(models="array")),
        "/api/ps": _get("The models, all loaded.", _object(models="array")),
        "/api/version": _get("The version of Ollama whose API this is.", _object(version="string")),
    }


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type as `json_codec.decode` reads it; top-level fields may also be null."""
    properties = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        schema = _schema(hints[field.name])
        limits = {key: value for key, value in field.metadata.items() if key != "doc"}
        if limits:
            schema = _limited(schema, limits)
        properties[field.name] = schema | ({"description": field.metadata["doc"]} if "doc" in field.metadata else {})
    required = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema(kind: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return schema_of(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if a is type(None) else _schema(a) for a in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    return dict(_PLAIN[kind])


def _limited(schema: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """The ranges, on the number and not on the null beside it."""
    if "anyOf" not in schema:
        return schema | limits
    return {"anyOf": [part if part.get("type") == "null" else part | limits for part in schema["anyOf"]]}


def _request(kind: Any) -> dict[str, Any]:
    schema = schema_of(kind)
    if "messages" in schema["properties"]:
        items = schema["properties"]["messages"]
        arrays = [part for part in [items, *items.get("anyOf", ())] if part.get("type") == "array"]
        for array in arrays:
            array |= {"items": _MESSAGE, "minItems": 1}
    if kind is ResponseFields:
        text, items = schema["properties"]["input"]["anyOf"]
        schema["properties"]["input"]["anyOf"] = [text, items | {"items": _ITEM, "minItems": 1}]
    schema["properties"] |= {name: {"description": "Accepted and ignored."} for name in sorted(_IGNORED.get(kind, ()))}
    return schema


def _post(
    words: str,
    fields: Any,
    answer: dict[str, Any],
    *,
    stream: bool = False,
    lines: bool = False,
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A route: it may answer in a stream of events, or in JSON objects, one a line, and have errors of its own."""
    content = {"application/json": {"schema": answer}}
    if stream:
        content["text/event-stream"] = {"schema": _EVENT}
    if lines:
        content["application/x-ndjson"] = {"schema": {"type": "string"}}
    responses = {"200": {"description": words, "content": content}}
    own = {status: _ERROR if status in _OF_GUARDS else error or _ERROR for status in _ERRORS}
    responses |= {status: _error(status, shape) for status, shape in own.items()}
    body = {"required": True, "content": {"application/json": {"schema": _request(fields)}}}
    return {"post": {"summary": words, "requestBody": body, "responses": responses}}


def _stored(what: str, answer: dict[str, Any], method: str = "get") -> dict[str, Any]:
    found = {"description": what, "content": {"application/json": {"schema": answer}}}
    responses = {"200": found} | {status: _error(status) for status in ("400", "401", "403", "404")}
    name = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    verb = "Forget" if method == "delete" else "Read"
    return {method: {"summary": f"{verb} a stored {what}.", "parameters": [name], "responses": responses}}


def _get(words: str, answer: dict[str, Any], *others: str) -> dict[str, Any]:
    found = {"description": words, "content": {"application/json": {"schema": answer}}}
    other = {"description": "It does not.", "content": {"application/json": {"schema": answer}}}
    return {"get": {"summary": words, "responses": {"200": found} | dict.fromkeys(others, other)}}


def _error(status: str, schema: Mapping[str, Any] = _ERROR) -> dict[str, Any]:
    return {"description": _ERRORS[status], "content": {"application/json": {"schema": schema}}}


def _object(**properties: str) -> dict[str, Any]:
    described = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "required": list(properties), "properties": described}


_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]},
    },
}
_TEXT = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"enum": ["input_text", "output_text"]}, "text": {"type": "string"}},
            },
        },
    ]
}
_NAME = {"type": "string", "minLength": 1}


def _item(kind: str, **properties: Any) -> dict[str, Any]:
    described = {"type": {"const": kind}} | properties
    return {"type": "object", "required": list(described), "properties": described, "additionalProperties": False}


_ITEM = {
    "anyOf": [
        _item("message", role={"enum": ["system", "developer", "user", "assistant"]}, content=_TEXT),
        _item("function_call", call_id=_NAME, name=_NAME, arguments={"type": "string"}),
        _item("function_call_output", call_id=_NAME, output=_TEXT),
    ]
}
_RESPONSE = _object(
    id="string", object="string", created_at="integer", model="string", status="string", output="array", usage="object"
)
_DELETED = _object(id="string", object="string", deleted="boolean")
_ANSWER = _object(id="string", object="string", created="integer", model="string", choices="array", usage="object")
_LISTED = _object(object="string", data="array", model="string", usage="object")
_RERANKED = _object(id="string", model="string", results="array", usage="object")
_BEARER = {"type": "http", "scheme": "bearer"}
