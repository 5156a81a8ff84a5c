"""How much a model shall think: what a request asks for, in the words of its template."""

from typing import Any

from ..errors import RequestError
from .formats.format import ChatFormat

_SWITCHES = ("enable_thinking", "thinking", "reasoning")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def thinking_variables(
    chat: ChatFormat, *, effort: str | None = None, enable: bool | None = None, budget: int | None = None
) -> dict[str, Any]:
    """Variables for the template.

    Args:
        chat: what the template reads.
        effort: `reasoning_effort` of a request.
        enable: `enable_thinking`.
        budget: `thinking_budget`, in tokens.

    Raises:
        RequestError: the template has no place for it.
    """
    made: dict[str, Any] = {}
    if enable is not None:
        made |= _switched(chat, enable, "enable_thinking")
    if effort is not None:
        made |= _effort(chat, effort)
    if budget is not None:
        made |= _budget(chat, budget)
    return made


def check_variables(chat: ChatFormat, variables: dict[str, Any], field: str) -> None:
    """Refuse a variable that the template does not read.

    Raises:
        RequestError: names it, and those that are read.
    """
    unknown = sorted(variables.keys() - chat.variables)
    if unknown:
        raise RequestError(f"{field}: {unknown[0]!r:.60} is not read by this model's chat template. {_read(chat)}")


def _effort(chat: ChatFormat, effort: str) -> dict[str, Any]:
    if effort not in EFFORTS:
        raise RequestError(f"reasoning_effort must be one of {', '.join(EFFORTS)}, got {effort!r:.40}.")
    if "reasoning_effort" in chat.variables:
        return {"reasoning_effort": effort}
    return _switched(chat, effort != "none", "reasoning_effort")


def _budget(chat: ChatFormat, budget: int) -> dict[str, Any]:
    if "thinking_budget" in chat.variables:
        return {"thinking_budget": budget}
    if budget == 0:
        return _switched(chat, False, "thinking_budget")
    raise RequestError(f"thinking_budget: this model's chat template has no place for it. {_read(chat)}")


def _switched(chat: ChatFormat, wanted: bool, field: str) -> dict[str, Any]:
    switch = next((name for name in _SWITCHES if name in chat.variables), None)
    if switch is not None:
        return {switch: wanted}
    if not wanted and chat.thoughts is None and not (chat.calls and chat.calls.shape == "channels"):
        return {}  # it does not think anyway
    raise RequestError(f"{field}: this model's chat template has no switch for thoughts. {_read(chat)}")


def _read(chat: ChatFormat) -> str:
    shown = sorted(chat.variables - {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
    return f"It reads {', '.join(shown)}." if shown else "It reads no variables."
