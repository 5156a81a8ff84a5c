"""The format of a chat template: what it renders, and rows of a table for what it does not."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from .derive import Render, TemplateProbe
from .format import CallFrame, ChatFormat, ThoughtFrame
from .known import ALIASES, CODE_MARKS, FIXED, TABLE, THOUGHTS, WRAPPERS

_CONDITION = ("tools", "tool_calls")
_NO_FORMAT = (
    "the chat template shows tools to the model, but not how it calls them: its answers cannot be read as tool calls. "
    "Give another template with --chat-template, or use --tool-fallback"
)
_NO_TOOLS = (
    "the chat template has no tools. Leave them out, give another template with --chat-template, or use --tool-fallback"
)


def analyse(source: str, render: Render, ends: Sequence[str], variables: Collection[str]) -> ChatFormat:
    """What can be known of how a model answers.

    Args:
        source: of its template.
        render: see `TemplateProbe`.
        ends: texts of the tokens that end an answer.
        variables: what the template reads.
    """
    probe = TemplateProbe(render, ends)
    fixed = next((frame for mark, frame in FIXED if mark in source), None)
    thoughts = None if fixed and fixed.shape == "channels" else _thoughts(probe, source)
    probe.found_thoughts = thoughts
    found = probe.calls()
    takes_tools = probe.takes_tools()
    calls, origin = _calls(found, fixed, source, takes_tools)
    return ChatFormat(
        calls=calls,
        thoughts=thoughts,
        wrapper=_wrapper(probe, source),
        source=origin,
        takes_tools=takes_tools,
        shows_calls=probe.shows_calls,
        needs_content=probe.needs_content(),
        text_arguments=probe.text_arguments,
        variables=frozenset(variables),
        problem="" if calls else (_NO_FORMAT if takes_tools else _NO_TOOLS),
    )


def _calls(
    found: CallFrame | None, fixed: CallFrame | None, source: str, takes_tools: bool
) -> tuple[CallFrame | None, str]:
    if fixed is not None:
        return fixed, "table"
    if not takes_tools:
        return None, ""
    if found is not None:
        mark = next((mark for mark in CODE_MARKS if mark in source), None)
        return _with_aliases(replace(found, code_mark=mark or _llama_mark(found))), "template"
    known = next((frame for mark, frame in TABLE if mark in source), None)
    return (_with_aliases(known), "table") if known else (None, "")


def _with_aliases(frame: CallFrame) -> CallFrame:
    return replace(frame, aliases=ALIASES.get(frame.section_mark or frame.open_mark, ()))


def _llama_mark(found: CallFrame) -> str | None:
    """Llama's models may announce any call by the mark of built-in tools, which templates for 3.2 do not name."""
    return CODE_MARKS[0] if found.bare and found.arguments_key == "parameters" else None


def _thoughts(probe: TemplateProbe, source: str) -> ThoughtFrame | None:
    known = next((frame for mark, frame in THOUGHTS if mark in source), None)
    found = probe.thoughts()
    return found if known is None or (found and found.close_mark == known.close_mark) else known


def _wrapper(probe: TemplateProbe, source: str) -> tuple[str, str] | None:
    for opens, closes in WRAPPERS:
        if opens in source and closes in source and not probe.wraps_results(opens):
            return opens, closes
    return None
