"""Which field of a request a schema that cannot be enforced stands in: answers and calls share one grammar."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ...errors import RequestError
from ...sampling.grammar import StructuredOutput
from .chat_format import answer_form
from .errors import ApiError
from .protocol import ChatFields

# Path → the field of the answer's schema, and that of a tool's.
_NAMES = {
    "/v1/responses": ("text.format.schema", "parameters"),
    "/v1/messages": ("output_config.format.schema", "input_schema"),
    "/v1/messages/count_tokens": ("output_config.format.schema", "input_schema"),
    "/api/chat": ("format", "function.parameters"),
    "/api/generate": ("format", "function.parameters"),
}
_CHAT = ("response_format.json_schema.schema", "function.parameters")


def located(
    error: RequestError,
    fields: ChatFields,
    path: str,
    compile: Callable[[StructuredOutput], object],  # noqa: A002
) -> Exception:
    """The error with the field that it is about, where a schema or grammar of the request does not compile.

    Args:
        error: what the request failed with.
        fields: of the request.
        path: of the route, which has names of its own for the fields of a chat.
        compile: raises RequestError for what cannot be enforced.
    """
    if not str(error).startswith("structured output:"):
        return error
    where = _field(fields, next((_NAMES[end] for end in _NAMES if path.endswith(end)), _CHAT), compile)
    return ApiError(400, str(error), param=where) if where else error


def _field(
    fields: ChatFields,
    names: tuple[str, str],
    compile: Callable[[StructuredOutput], object],  # noqa: A002
) -> str | None:
    for place, tool in enumerate(fields.tools or ()):
        parameters = tool["function"].get("parameters") if isinstance(tool.get("function"), dict) else None
        if isinstance(parameters, dict) and not _compiles(partial(StructuredOutput, json_schema=parameters), compile):
            return f"tools[{place}].{names[1]}"
    if fields.structured_outputs:
        return "structured_outputs"
    with suppress(ApiError):
        return names[0] if not _compiles(lambda: answer_form(fields).structured, compile) else None
    return None


def _compiles(make: Callable[[], StructuredOutput | None], compile: Callable[[StructuredOutput], object]) -> bool:  # noqa: A002
    try:
        wanted = make()
        if wanted is not None:
            compile(wanted)
    except RequestError:
        return False
    return True
