"""The `onnxlm` command: a table of subcommands, each imported only when it is called."""

import importlib
import sys
from typing import Any

import click

from ..errors import OnnxlmError

# name → (module, function, what it needs beyond the base install, help line)
COMMANDS: dict[str, tuple[str, str, str, str]] = {
    "export": ("exporter.cli", "export", "export", "Turn a checkpoint into a bundle: prefill and decode graphs."),
    "quantize": ("quantizer.cli.quantize", "quantize", "export", "Rewrite a bundle's weights to 4 or 8 bits."),
    "eval": ("quantizer.cli.eval", "evaluate", "export", "Compare a quantized bundle with the one it was made from."),
    "compare": ("quantizer.cli.compare", "compare", "export", "Put bundles side by side: size, quality, speed."),
    "quantize-kv": ("quantizer.cli.kv", "quantize_kv", "export", "Store a bundle's keys and values in 8 or 4 bits."),
    "run": ("runtime.cli.run", "run", "cpu", "Generate text, or chat in the terminal."),
    "serve": ("runtime.cli.serve", "serve", "serve", "Serve models to OpenAI's clients over HTTP."),
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
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help lines from the table, importing nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, _, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our errors become one line on stderr and their exit code, never a traceback."""
        try:
            return super().invoke(ctx)
        except OnnxlmError as error:
            raise _Failure(error) from error
        except BrokenPipeError:
            sys.stderr.close()  # the reader went away: nothing to say, and nowhere to say it
            sys.exit(141)


class _Failure(click.ClickException):
    def __init__(self, error: OnnxlmError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code  # type: ignore[misc]  # click declares it per class, ours is per error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onnxlm")
def main() -> None:
    """Export language models to ONNX, quantize them, and run them on ONNX Runtime.

    \b
    Example:
      onnxlm export SmolLM2-135M-Instruct.gguf -o smol
      onnxlm quantize smol -o smol-int4 --bits 4
      onnxlm run smol-int4 "Why is the sky blue?"
    """
