"""The loop of a chat in the terminal: read a message, show the answer."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...errors import OnnxlmError
from ...options import SamplingParams
from ..terminal.streaming import Pace, show
from .commands import COMMANDS, ChatState, react
from .conversation import Conversation

if TYPE_CHECKING:
    from ...engine.generation import OutputDelta

_TRIAL = 6  # tokens: enough for a first figure, too few to wait for
_QUOTES = '"""'
_HISTORY_LINES = 1000


class TerminalChat:
    """Runs until /exit, the end of the input, or Ctrl-C twice at the prompt.

    Args:
        conversation: remembers and answers.
        stats: whether to print the speed of each answer to stderr.
    """

    def __init__(self, conversation: Conversation, stats: bool = False) -> None:
        self._state = ChatState(conversation, stats)
        self._interactive = sys.stdin.isatty()

    def run(self) -> None:
        """Talk."""
        if self._interactive:
            _open_history()
            click.echo(_banner(self._state.conversation), err=True)
        said = False
        with suppress(KeyboardInterrupt):  # one that came between reading and answering
            while (message := self._read()) is not None:
                said = True
                self._react(message.strip())
        if not said and not self._interactive:
            raise click.UsageError("there is no PROMPT, and standard input is empty: give one of them.")

    def _react(self, message: str) -> None:
        words = react(self._state, message) if message.startswith("/") else None
        if words is not None:
            click.echo(words, err=True)
            message, self._state.question = self._state.question or "", None
            if not message:
                return
        conversation = self._state.conversation
        if not conversation.waiting_calls:
            if message:
                self._answer(lambda: conversation.ask(message))
            return
        conversation.add_result(message)
        if not conversation.waiting_calls:
            self._answer(conversation.go_on)

    def _answer(self, begin: "Callable[[], Iterator[OutputDelta]]") -> None:
        pace = self._state.pace = Pace()
        try:
            show(begin(), pace, rendered=self._interactive)
        except OnnxlmError as error:
            click.echo(f"Error: {error}\n/undo forgets the last message, /reset begins anew.", err=True)
            return
        click.echo()
        for call in self._state.conversation.waiting_calls:
            click.echo(f"calls {call['function']['name']}({call['function']['arguments']})", err=True)
        if self._state.stats:
            click.echo(pace.line(), err=True)

    def _read(self) -> str | None:
        """The next message, or None to leave."""
        interrupted = False
        while True:
            try:
                message = self._read_message()
            except EOFError:
                return None
            except KeyboardInterrupt:
                click.echo("" if interrupted else "\nCtrl-C again, or /exit, leaves.", err=True)
                if interrupted:
                    return None
                interrupted = True
            else:
                return None if message.strip() == "/exit" else message

    def _read_message(self) -> str:
        calls = self._state.conversation.waiting_calls
        line = self._read_line(f"{calls[0]['function']['name']} returns> " if calls else "> ")
        if not line.lstrip().startswith(_QUOTES):
            return line
        lines = [line.lstrip().removeprefix(_QUOTES)]
        while not lines[-1].rstrip().endswith(_QUOTES):
            lines.append(self._read_line(". "))
        lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
        return "\n".join(lines)

    def _read_line(self, mark: str) -> str:
        return input(mark if self._interactive else "")


def _banner(conversation: Conversation) -> str:
    model = conversation.llm.model
    manifest = model.bundle.manifest
    size = sum(entry.size for entry in manifest.files.values())
    return (
        f"{model.bundle.folder.resolve().name}: {manifest.architecture.parameters / 1e6:,.0f} M parameters in "
        f"{size / 1e6:,.0f} MB, {model.engine.core.executor.capacity:,} tokens of context, "
        f"{_speed(conversation):.0f} tokens/s here\n/help for help"
    )


def _speed(conversation: Conversation) -> float:
    """Tokens per second of a few steps from a short prompt."""
    params = SamplingParams(max_tokens=_TRIAL, temperature=0.0, ignore_eos=True)
    times = [time.perf_counter() for _ in conversation.llm.stream([0], params)]
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0


def _open_history() -> None:
    """Give input() its line editing, its completion of commands, and the lines of earlier sessions."""
    try:
        import readline
    except ImportError:  # Windows
        return
    import atexit

    base = os.environ.get("XDG_STATE_HOME")
    path = (Path(base) if base else Path.home() / ".local" / "state") / "onnxlm" / "chat_history"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
        readline.set_history_length(_HISTORY_LINES)
        atexit.register(_write_history, path)
    readline.set_completer_delims("")
    readline.set_completer(_complete)
    readline.parse_and_bind("tab: complete")


def _complete(text: str, state: int) -> str | None:
    found = [name for name in [*COMMANDS, "/exit"] if text.startswith("/") and name.startswith(text)]
    return found[state] if state < len(found) else None


def _write_history(path: Path) -> None:
    import readline

    with suppress(OSError):
        readline.write_history_file(path)
        path.chmod(0o600)  # what was asked is nobody else's business
