"""What a bundle's chat template tells of how its model calls tools and thinks, in words."""

from ..bundle.bundle import Bundle
from ..errors import OnnxlmError
from ..text.tokenizer import Tokenizer
from .formats.format import ID, CallFrame, ChatFormat
from .template import TEMPLATE_NAME, ChatTemplate

_NOT_SHOWN = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now", "documents"})


def describe_chat(bundle: Bundle) -> dict[str, str]:
    """What was found, by what it is about; a template that is broken says so."""
    if not bundle.has(TEMPLATE_NAME):
        return {"chat": "no template: the model completes text"}
    try:
        tokenizer = Tokenizer(bundle.path("tokenizer.json"), bundle.manifest.tokens.special)
        return describe_format(ChatTemplate.open(bundle, tokenizer).format)
    except OnnxlmError as error:
        return {"chat": f"unusable: {error}"}


def chat_warning(bundle: Bundle) -> str | None:
    """What to tell whoever exports: the template shows tools, and how they are called cannot be read."""
    if not bundle.has(TEMPLATE_NAME):
        return None
    try:
        tokenizer = Tokenizer(bundle.path("tokenizer.json"), bundle.manifest.tokens.special)
        chat = ChatTemplate.open(bundle, tokenizer).format
    except OnnxlmError as error:
        return f"The chat template cannot be used: {error}"
    return f"Tools: {chat.problem}." if chat.takes_tools and chat.calls is None else None


def describe_format(chat: ChatFormat) -> dict[str, str]:
    """The format in words."""
    lines = {"tool calls": _calls(chat)}
    if chat.thoughts:
        lines["thoughts"] = f"{chat.thoughts.open!r} … {chat.thoughts.close!r}"
    elif chat.calls and chat.calls.shape == "channels":
        lines["thoughts"] = "messages on the channel analysis"
    if chat.wrapper:
        lines["text stands in"] = " … ".join(map(repr, chat.wrapper))
    if read := sorted(chat.variables - _NOT_SHOWN):
        lines["template reads"] = ", ".join(read)
    return lines


def _calls(chat: ChatFormat) -> str:
    if chat.calls is None:
        return f"none: {chat.problem}"
    origins = {"template": "read off the template", "table": "known by a mark in the template", "fallback": "fall-back"}
    return f"{_example(chat.calls)!r} ({origins[chat.source]})"


def _example(frame: CallFrame) -> str:
    """One call as the model writes it."""
    call = {
        "json": f"{frame.before_name}NAME{frame.before_arguments}ARGUMENTS{frame.after_arguments}",
        "keyed": '{"NAME": ARGUMENTS}',
        "tagged": f"NAME{frame.before_arguments}{frame.before_key}KEY{frame.before_value}VALUE{frame.after_value}",
        "python": "NAME(KEY=VALUE)",
        "marked": f"NAME{{KEY:{frame.quote}VALUE{frame.quote}}}",
    }.get(frame.shape, f"NAME{frame.before_arguments}ARGUMENTS{frame.after_arguments}")
    return f"{frame.section_open}{frame.open}{call}{frame.close}{frame.section_close}".replace(ID, "ID")
