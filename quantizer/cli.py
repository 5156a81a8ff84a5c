"""`onnxlm quantize`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.errors import QuantizationError

if TYPE_CHECKING:
    from .quantize import Progress, Result
    from .scheme import Recipe

_GROUP_SIZES = click.Choice(["16", "32", "64", "128", "256"])


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the new bundle.")
@click.option("--bits", type=click.Choice(["4", "8"]), default="4", show_default=True, help="Bits of layer weights.")
@click.option("--group-size", type=_GROUP_SIZES, default="32", show_default=True, help="Weights that share a scale.")
@click.option("--symmetric/--asymmetric", default=False, help="Without or with zero points.  [default: asymmetric]")
@click.option("--table-bits", type=click.Choice(["4", "8"]), default="8", show_default=True, help="Embedding and head.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave matching matrices as they are; repeatable.")
@click.option("--overwrite", is_flag=True, help="Replace a bundle at OUTPUT.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def quantize(source: Path, output: Path, overwrite: bool, as_json: bool, **choices: Any) -> None:
    """Rewrite the weights of the bundle SOURCE to 4 or 8 bits.

    \b
    Examples:
      onnxlm quantize smol -o smol-int4 --bits 4 --group-size 32
      onnxlm quantize smol -o smol-int8 --bits 8
      onnxlm quantize smol -o mixed --exclude "model.layers.0.*"
    """
    from .quantize import quantize as run

    recipe = _recipe(**choices)
    with _progress() as progress:
        result = run(source, output, recipe, overwrite=overwrite, progress=progress)
    if as_json:
        click.echo(json.dumps(_as_data(result), indent=1))
    else:
        _print_table(output, result)


def _recipe(bits: str, group_size: str, symmetric: bool, table_bits: str, exclude: tuple[str, ...]) -> "Recipe":
    from .scheme import Choice, Recipe, Scheme

    try:
        linear = Choice(Scheme(int(bits), int(group_size), symmetric))
        return Recipe(linear, table=Choice(Scheme(int(table_bits), 32, symmetric=True)), exclude=exclude)
    except ValueError as error:
        raise QuantizationError(str(error)) from error


@contextmanager
def _progress() -> "Iterator[Progress]":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("quantizing", total=None)
        yield lambda doing, done, total: bar.update(task, description=doing, total=total, completed=done)


def _as_data(result: "Result") -> dict[str, Any]:
    from .summary import summarize

    return {
        "bits_per_weight": result.bits_per_weight,
        "bytes": sum(entry.size for entry in result.manifest.files.values()),
        "kinds": [asdict(line) for line in summarize(result)],
    }


def _print_table(output: Path, result: "Result") -> None:
    from .summary import summarize

    rows: list[tuple[str, ...]] = [("matrix", "count", "stored", "before", "after", "mean error", "worst")]
    for line in summarize(result):
        sizes = [f"{size / 2**20:.1f} MiB" for size in (line.bytes_before, line.bytes_after)]
        rows.append(
            (line.name, str(line.count), line.stored, *sizes, f"{line.mean_error:.2%}", f"{line.worst_error:.2%}")
        )
    for text in _columns(rows, left={0, 2}):
        click.echo(text)
    size = sum(entry.size for entry in result.manifest.files.values())
    click.echo(f"{output}: {size / 2**20:.1f} MiB, {result.bits_per_weight:.2f} bits per weight")


def _columns(rows: list[tuple[str, ...]], left: set[int]) -> "Iterator[str]":
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(cells).rstrip()
