"""The `onnxlm` command: a table of subcommands, each imported only when it is called."""

import difflib
import errno
import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from ..errors import OnnxlmError
from .option_effects import EFFECTS, refusing_idle_options

# name → (module, function, what it needs beyond the base install, help line)
COMMANDS: dict[str, tuple[str, str, str, str]] = {
    "export": ("exporter.cli", "export", "export", "Turn a checkpoint into a bundle: prefill and decode graphs."),
    "quantize": (
        "quantizer.cli.quantize",
        "quantize",
        "export",
        "Rewrite weights of a bundle or checkpoint to 4 or 8 bits.",
    ),
    "eval": ("quantizer.cli.eval", "evaluate", "export", "Compare a quantized bundle with the one it was made from."),
    "compare": ("quantizer.cli.compare", "compare", "export", "Put bundles side by side: size, quality, speed."),
    "quantize-kv": ("quantizer.cli.kv", "quantize_kv", "export", "Store a bundle's keys and values in 8 or 4 bits."),
    "run": ("runtime.cli.run", "run", "cpu", "Generate text, or chat in the terminal."),
    "embed": ("runtime.cli.embed", "embed", "cpu", "Print the vectors of texts, for search and comparison."),
    "rerank": ("runtime.cli.embed", "rerank", "cpu", "Sort documents by how well they fit a query."),
    "serve": ("runtime.cli.serve", "serve", "serve", "Serve models to OpenAI's clients over HTTP."),
    "pull": ("exporter.cache_cli", "pull", "export", "Fetch and prepare a model without running it."),
    "cache": ("exporter.cache_cli", "cache", "export", "List or remove prepared models."),
    "prepare": ("runtime.cli.prepare", "prepare", "cpu", "Pack weights for this processor once, for quick starts."),
    "package": ("runtime.cli.package", "package", "cpu", "Pack a bundle for an offline machine, with its wheels."),
    "bench": ("runtime.cli.bench", "bench", "cpu", "Measure prefill and decode speed, start-up and memory."),
    "inspect": (
        "runtime.cli.inspect",
        "inspect",
        "cpu",
        "Show what a bundle is: sizes, bits, operators, quality.",
    ),
    "plan": ("runtime.cli.plan", "plan", "cpu", "Show how many users fit, and the speed memory allows."),
    "doctor": ("runtime.cli.doctor", "doctor", "cpu", "Show what this machine can run, and what is missing."),
}
_INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended
_PIPE_CLOSED = 141
_NO_ADVICE = "Check the path, its permissions and the free space."
_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space, or choose another folder.",
    errno.EDQUOT: "The disk quota is used up: free some space, or choose another folder.",
    errno.EFBIG: "Files may not grow that large there: lift the limit (`ulimit -f`), or choose another file system.",
    errno.EACCES: "You may not write or read there: choose another path, or change its permissions.",
    errno.EPERM: "You may not write or read there: choose another path, or change its permissions.",
    errno.EROFS: "That file system is read-only: choose another path.",
    errno.ENOENT: "Check the path: a folder on the way to it does not exist.",
    errno.ENOTDIR: "Check the path: a part of it is a file, not a folder.",
    errno.EISDIR: "That is a folder: name a file.",
}


class LazyGroup(click.Group):
    """Lists commands from the table without importing them, so that `onnxlm --help` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table, which is the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; a missing optional package becomes an error that names the extra."""
        if cmd_name not in COMMANDS:
            return None
        module, function, extra, _ = COMMANDS[cmd_name]
        try:
            command: click.Command = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"`onnxlm {cmd_name}` needs the package {error.name!r}: pip install 'onnxlm[{extra}]'"
            ) from error
        if not any(parameter.name == "quiet" for parameter in command.params):
            command.params += [_quiet_option(), _verbose_option()]
            if cmd_name in EFFECTS:
                refusing_idle_options(command, EFFECTS[cmd_name])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, but a misspelled command is told what it may have been."""
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if near and near[0] != args[0]:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help lines from the table, importing nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, _, line) in COMMANDS.items()])

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Read the options; `--help` and `--version` print here."""
        with _one_line():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what can go wrong becomes one line on stderr and an exit code, never a traceback."""
        with _one_line():
            result = super().invoke(ctx)
            sys.stdout.flush()  # a full disk is found here, not after the exit code is decided
            return result


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn what a command raises into one line on stderr and an exit code."""
    try:
        yield
    except OnnxlmError as error:
        raise _Failure(str(error), error.exit_code) from error
    except BrokenPipeError:
        _drop_output()  # the reader went away: nothing to say, and nowhere to say it
        sys.exit(_PIPE_CLOSED)
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        sys.exit(_INTERRUPTED)
    except MemoryError as error:
        words = "Out of memory. Close other programs, or choose a smaller model, --context or --concurrency."
        raise _Failure(words) from error
    except OSError as error:
        if error.errno is None:
            raise
        _drop_output()
        raise _Failure(_system_words(error)) from error


class _Failure(click.ClickException):
    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it per class, ours is per error


def _system_words(error: OSError) -> str:
    """An error of the operating system as what, where and what to do."""
    where = f"{error.filename}: " if error.filename is not None else ""
    advice = _ADVICE.get(error.errno or 0, _NO_ADVICE)
    return f"{where}{error.strerror}. {advice}"


def _drop_output() -> None:
    """Let the interpreter's last flush of standard output go nowhere instead of failing once more."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # there is no such descriptor, as in tests
        return


def _quiet_option() -> click.Option:
    return click.Option(
        ["-q", "--quiet"],
        is_flag=True,
        expose_value=False,
        callback=lambda ctx, _, wanted: _set_verbosity(ctx, quiet=True) if wanted else None,
        help="No progress and no warnings on stderr.",
    )


def _verbose_option() -> click.Option:
    return click.Option(
        ["-v", "--verbose"],
        count=True,
        expose_value=False,
        callback=lambda ctx, _, count: _set_verbosity(ctx, level=count) if count else None,
        help="Log what happens on stderr; -vv logs more.",
    )


def _set_verbosity(context: click.Context, level: int = 0, *, quiet: bool = False) -> None:
    context.find_root().meta["onnxlm.quiet"] = quiet
    chosen = logging.ERROR if quiet else logging.INFO if level == 1 else logging.DEBUG
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("onnxlm").setLevel(chosen)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onnxlm")
def main() -> None:
    """Export language models to ONNX, quantize them, and run them on ONNX Runtime.

    \b
    Example:
      onnxlm run SmolLM2-135M-Instruct.gguf "Why is the sky blue?"
      onnxlm export SmolLM2-135M-Instruct.gguf -o smol
      onnxlm quantize smol -o smol-int4 --bits 4
      onnxlm serve smol-int4
    """
