"""What can be typed at the prompt of a chat beside messages: a table of commands, one function each."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import OnnxlmError
from ..terminal.streaming import Pace
from .conversation import Conversation


@dataclass
class ChatState:
    """What commands read and change.

    Attributes:
        conversation: the messages and the model.
        stats: whether to print the speed behind each answer.
        pace: of the last answer.
        question: a message to answer next, set by /retry.
    """

    conversation: Conversation
    stats: bool = False
    pace: Pace | None = None
    question: str | None = None


def react(state: ChatState, line: str) -> str | None:
    """Carry out a line that begins with a slash; what to tell the user, None if it is no command but a message."""
    name, _, argument = line.partition(" ")
    if name not in COMMANDS:
        return None if argument or "\n" in line else f"{name} is not a command: /help lists them."
    try:
        return COMMANDS[name][0](state, argument.strip())
    except OnnxlmError as error:
        return f"Error: {error}"
    except OSError as error:
        return f"Error: {error.filename}: {error.strerror}."


def _help(_state: ChatState, _argument: str) -> str:
    lines = [f"{usage:22} {words}" for _, usage, words in COMMANDS.values()]
    return "\n".join([*lines, f"{'/exit':22} leave (also Ctrl-D, or Ctrl-C twice)", *_KEYS])


def _reset(state: ChatState, _argument: str) -> str:
    state.conversation.reset()
    return "A new conversation."


def _system(state: ChatState, argument: str) -> str:
    if not argument:
        return f"The system message: {state.conversation.system or 'none'}"
    state.conversation.set_system(None if argument == "none" else argument)
    return "A new conversation with that system message."


def _params(state: ChatState, argument: str) -> str:
    for assignment in argument.split():
        name, _, text = assignment.partition("=")
        state.conversation.set_param(name, _value(text))
    shown = asdict(state.conversation.params)
    return "  ".join(f"{name}={value}" for name, value in shown.items() if value not in (None, (), {}))


def _value(text: str) -> Any:
    """A value as Python would write it, or the text itself."""
    try:
        return json.loads({"none": "null"}.get(text.lower(), text.lower()))
    except ValueError:
        return text


def _stats(state: ChatState, _argument: str) -> str:
    state.stats = not state.stats
    last = f" The last: {state.pace.line()}" if state.pace else ""
    return f"The speed of each answer is {'shown' if state.stats else 'no longer shown'}.{last}"


def _retry(state: ChatState, _argument: str) -> str:
    state.question = state.conversation.undo()
    return "Once more:" if state.question else "There is nothing to answer again."


def _undo(state: ChatState, _argument: str) -> str:
    question = state.conversation.undo()
    return "There is nothing to forget." if question is None else f"Forgotten: {question}"


def _tools(state: ChatState, argument: str) -> str:
    if argument == "none":
        state.conversation.tools = []
    elif argument:
        state.conversation.load_tools(Path(argument))
    names = [tool["function"]["name"] for tool in state.conversation.tools]
    if not names:
        return "The model may call no tools: /tools FILE names some."
    return f"The model may call: {', '.join(names)}. You type what a call returns."


def _save(state: ChatState, argument: str) -> str:
    if not argument:
        return "Name a file: /save chat.json"
    state.conversation.save(Path(argument))
    return f"{len(state.conversation.messages)} messages are in {argument}."


def _load(state: ChatState, argument: str) -> str:
    if not argument:
        return "Name a file: /load chat.json"
    state.conversation.load(Path(argument))
    return f"{len(state.conversation.messages)} messages from {argument}; the conversation goes on behind them."


_KEYS = ('"""                    begin and end a message of several lines', "Ctrl-C                 stop an answer")
# name → what it does, how it is used, what the help says
COMMANDS: dict[str, tuple[Callable[[ChatState, str], str], str, str]] = {
    "/help": (_help, "/help", "this list"),
    "/system": (_system, "/system [TEXT|none]", "show or set the system message; setting it begins anew"),
    "/params": (_params, "/params [NAME=VALUE …]", "show or set sampling parameters, such as temperature=0"),
    "/stats": (_stats, "/stats", "show the speed of each answer, or stop that"),
    "/retry": (_retry, "/retry", "answer the last message once more"),
    "/undo": (_undo, "/undo", "forget the last message and its answer"),
    "/tools": (_tools, "/tools [FILE|none]", "show or set the functions that the model may call, as JSON"),
    "/save": (_save, "/save FILE", "write the conversation to a file"),
    "/load": (_load, "/load FILE", "go on with a conversation from a file"),
    "/reset": (_reset, "/reset", "begin anew"),
}
