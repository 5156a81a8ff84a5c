"""`onnxlm quantize`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.cli.terminal.interrupt import stopping_promptly
from runtime.cli.terminal.progress import progress as show_progress
from runtime.errors import QuantizationError

from ..algorithms.registry import METHODS, explain_methods
from ..costs.table import TARGETS, THIS_MACHINE

if TYPE_CHECKING:
    from ..flow import Result
    from ..recipe import Recipe

_NUMBERS = {"bits": ["4", "8"], "group_size": ["16", "32", "64", "128", "256"]}
_WHOLE = ("bits", "group_size", "embedding_bits")
_PATH = click.Path(path_type=Path)


def _count_or_auto(_context: click.Context, _option: click.Parameter, text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r} is neither a number of inputs (0 or more) nor 'auto'.")
    return int(text)


def _size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    from runtime.host.byte_units import parse_bytes

    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


_HELP = """Rewrite the weights of SOURCE to 4 or 8 bits.

SOURCE is a bundle; or a checkpoint, a Hugging Face folder or a GGUF file, whose float bundle is made and verified
in the work folder first.

\b
Presets:
  fast      the best grid for each group, embedding in 8 bits; no text, seconds
  balanced  5.0 bits per weight, spent by measured sensitivity (the default)
  small     the same with 4.6 bits
  accurate  the same with 6.2 bits

With --for, presets are points on the curve of KL against decode time instead: small takes 0.87 of the time of plain
4-bit groups of 32, balanced 0.93, accurate 1.02, on that target.

Without a preset, options that say how weights are stored are taken at their word and need no text, but for
--residual-channels, which mean --method gptq. --kv needs text, too.

Before it begins, it says what the run will take, and does things in smaller steps where memory is short.

\b
Examples:
  onnxlm quantize smol -o smol-int4
  onnxlm quantize SmolLM2-135M-Instruct.gguf -o smol-int4
  onnxlm quantize smol -o smol-5 --dry-run
  onnxlm quantize smol -o smol-int4 --bits 4 --group-size 32
  onnxlm quantize smol -o smol-small --preset small --calibration chats.jsonl --fail-if "kl>0.08"
  onnxlm quantize smol -o smol-int4 --bits 4 --residual-channels auto
  onnxlm quantize smol -o smol-quick --preset balanced --for avx512
  onnxlm quantize smol -o smol-quick --for this-machine --time 0.9
  onnxlm quantize smol -o smol-int4-kv8 --bits 4 --kv int8
  onnxlm quantize smol -o mixed --bits 8 --exclude "model.layers.0.*"
"""


@click.command(help=_HELP)
@click.argument("source", type=_PATH)
@click.option("-o", "--output", required=True, type=_PATH, help="Folder of the new bundle.")
@click.option(
    "--preset",
    type=click.Choice(["fast", "balanced", "small", "accurate"]),
    help="A recipe by name, explained below.",
)
@click.option("--bits", type=click.Choice(_NUMBERS["bits"]), help="Bits of layer weights.")
@click.option("--group-size", type=click.Choice(_NUMBERS["group_size"]), help="Weights that share a scale.")
@click.option("--symmetric/--asymmetric", default=None, help="Without or with zero points.")
@click.option(
    "--embedding-bits",
    "--table-bits",
    "embedding_bits",
    type=click.Choice(_NUMBERS["bits"]),
    help="Bits of embedding and head.",
)
@click.option(
    "--residual-channels",
    "--outliers",
    "residual_channels",
    metavar="N|auto",
    callback=_count_or_auto,
    help="Inputs of each matrix that get a second code; auto: as many as pay, for at most 3 % of the bytes.",
)
@click.option("--method", type=click.Choice(list(METHODS)), help=f"How codes are chosen. {explain_methods()}")
@click.option("--budget", type=float, metavar="BITS", help="Bits per weight over all parameters, spent by sensitivity.")
@click.option(
    "--for",
    "costs",
    metavar="TARGET|FILE",
    help=f"Count what a decode step takes there, not bytes: {', '.join([*TARGETS, THIS_MACHINE])}, or a file that "
    "`onnxlm bench --kernels -o FILE` wrote.",
)
@click.option(
    "--time",
    type=float,
    metavar="RATIO",
    help="With --for: what products of a decode step may take, of what plain 4-bit groups of 32 take.",
)
@click.option("--kv", type=click.Choice(["int8", "int4"]), help="Store keys and values in 8 or 4 bits, too.")
@click.option("--calibration", metavar="self|FILE", help="Text: .txt, .jsonl, or .npy of token ids.  [default: self]")
@click.option("--calibration-tokens", type=click.IntRange(min=1), help="Maximum number of tokens to use.")
@click.option("--seed", type=int, help="Of the text that the model writes itself.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave matching matrices as they are; repeatable.")
@click.option("--recipe", "recipe_file", type=_PATH, help="A recipe: TOML, or a bundle quantized by it.")
@click.option("--fail-if", metavar="CONDITION", help="Write nothing if so: 'kl>0.06', 'top1<0.9'.")
@click.option("--work", type=_PATH, help="Keep calibration here, and use what is there.")
@click.option("--memory", callback=_size, metavar="SIZE", help="Memory that may be used.  [default: what is free]")
@click.option("--dry-run", is_flag=True, help="Say what it will take, phase by phase, and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace a bundle at OUTPUT.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome, or the forecast of --dry-run, as JSON.")
def quantize(
    source: Path,
    output: Path,
    recipe_file: Path | None,
    fail_if: str | None,
    work: Path | None,
    memory: int | None,
    dry_run: bool,
    overwrite: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Read the options, run, and print what came out."""
    from ..flow import quantize as run
    from ..flow import work_beside
    from ..gate import parse_gate
    from ..preconditions import require_text
    from ..presets import require_effect
    from .forecast import Expected, forecast, say
    from .source import float_bundle

    recipe = _recipe(recipe_file, **choices)
    gate = parse_gate(fail_if) if fail_if else None
    require_effect({**choices, "work": work}, recipe, gate=gate is not None)
    if dry_run:
        say(forecast(source, output, recipe, gate, work, memory), as_json=as_json, err=False)
        return
    expected = Expected()
    with (
        _telling_what_is_kept(work or work_beside(output)),
        show_progress("quantizing", left=expected.seconds_left) as progress,
    ):
        require_text(recipe, gate)
        source = float_bundle(source, work or work_beside(output), progress)
        result = run(
            source, output, recipe, gate=gate, work=work, overwrite=overwrite, progress=progress,
            memory=memory, on_forecast=expected.tell,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(_as_data(result), indent=1))
    else:
        _print_table(output, result)


@contextmanager
def _telling_what_is_kept(work: Path) -> Iterator[None]:
    """Whatever ends a run early also says what the next attempt goes on from."""
    try:
        with stopping_promptly(lambda: _kept(work)):
            yield
    except QuantizationError as error:
        raise QuantizationError(f"{error}{_kept(work)}") from error


def _kept(work: Path) -> str:
    return f" What was measured is kept in {work}, for the next attempt." if work.is_dir() else ""


def _recipe(recipe_file: Path | None, **choices: Any) -> "Recipe":
    from ..choices import recipe_of

    numbers = {name: None if choices[name] is None else int(choices[name]) for name in _WHOLE}
    with show_progress("quantizing") as progress:
        return recipe_of(recipe_file, choices | numbers, progress)


def _as_data(result: "Result") -> dict[str, Any]:
    from ..summary import summarize

    quality, task = result.manifest.quality, result.manifest.task
    return {
        "bits_per_weight": result.bits_per_weight,
        "bytes": sum(entry.size for entry in result.manifest.files.values()),
        "quality": asdict(quality) if quality else None,
        "texts": asdict(task.quality) if task and task.quality else None,
        "kinds": [asdict(line) for line in summarize(result)],
    }


def _print_table(output: Path, result: "Result") -> None:
    from ..summary import columns, summarize

    rows: list[tuple[str, ...]] = [("matrix", "count", "stored", "before", "after", "mean error", "worst")]
    for line in summarize(result):
        sizes = [f"{size / 2**20:.1f} MiB" for size in (line.bytes_before, line.bytes_after)]
        errors = [f"{error:.2%}" for error in (line.mean_error, line.worst_error)]
        rows.append((line.name, str(line.count), line.stored, *sizes, *errors))
    for text in columns(rows, left={0, 2}):
        click.echo(text)
    size = sum(entry.size for entry in result.manifest.files.values())
    click.echo(f"{output}: {size / 2**20:.1f} MiB, {result.bits_per_weight:.2f} bits per weight")
    if result.manifest.kv_cache.calibration:
        click.echo(f"keys and values in {result.manifest.kv_cache.stored_bits} bits")
    texts = result.manifest.task and result.manifest.task.quality
    if texts:
        click.echo(f"cosine similarity {texts.cosine:.5f}, at least {texts.cosine_min:.5f}: {texts.texts} {texts.text}")
    quality = result.manifest.quality
    if quality:
        click.echo(
            f"KL {quality.kl:.4f} (99 %: {quality.kl_p99:.3f}), top-1 {quality.top1:.1%}, perplexity "
            f"{quality.perplexity:.2f} for {quality.reference_perplexity:.2f}: {quality.tokens:,} tokens {quality.text}"
        )
