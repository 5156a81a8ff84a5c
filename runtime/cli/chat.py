"""The loop of a chat in the terminal: read a message, show the answer."""

import sys
from contextlib import suppress

import click

from ..errors import OnnxlmError
from .conversation import Conversation
from .streaming import Pace, show

_HELP = '''/reset   begin anew
/exit    leave (also Ctrl-D, or Ctrl-C twice)
"""      begin and end a message of several lines
Ctrl-C   stop an answer'''
_QUOTES = '"""'


class TerminalChat:
    """Runs until /exit, the end of the input, or Ctrl-C twice at the prompt.

    Args:
        conversation: remembers and answers.
        stats: whether to print the speed of each answer to stderr.
    """

    def __init__(self, conversation: Conversation, stats: bool = False) -> None:
        self._conversation = conversation
        self._stats = stats
        self._interactive = sys.stdin.isatty()

    def run(self) -> None:
        """Talk."""
        if self._interactive:
            import readline  # noqa: F401  # gives input() its line editing and history

            click.echo("/help for help", err=True)
        with suppress(KeyboardInterrupt):  # one that came between reading and answering
            while (message := self._read()) is not None:
                self._react(message.strip())

    def _react(self, message: str) -> None:
        if message == "/reset":
            self._conversation.reset()
            click.echo("A new conversation.", err=True)
        elif message == "/help":
            click.echo(_HELP, err=True)
        elif message.startswith("/") and " " not in message and "\n" not in message:
            click.echo(f"{message} is not a command: /help lists them.", err=True)
        elif message:
            self._answer(message)

    def _answer(self, message: str) -> None:
        pace = Pace()
        try:
            show(self._conversation.ask(message), pace)
        except OnnxlmError as error:
            click.echo(f"Error: {error}\n/reset begins anew.", err=True)
            return
        click.echo()
        if self._stats:
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
        line = self._read_line("> ")
        if not line.lstrip().startswith(_QUOTES):
            return line
        lines = [line.lstrip().removeprefix(_QUOTES)]
        while not lines[-1].rstrip().endswith(_QUOTES):
            lines.append(self._read_line(". "))
        lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
        return "\n".join(lines)

    def _read_line(self, mark: str) -> str:
        return input(mark if self._interactive else "")
