"""`onnxlm compare`."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from runtime.cli.terminal.interrupt import stopping_promptly
from runtime.cli.terminal.progress import progress as show_progress
from runtime.errors import QuantizationError

_PATH = click.Path(path_type=Path)


@click.command("compare")
@click.argument("folders", nargs=-1, required=True, type=_PATH)
@click.option("--reference", type=_PATH, help="The unquantized bundle, for quality on --text.")
@click.option("--text", type=_PATH, help="Text: .txt, .jsonl, or .npy of token ids.")
@click.option("--tokens", default=4096, show_default=True, type=click.IntRange(min=2), help="Most tokens to compare.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(min=1), help="Rounds of speed measurement.")
@click.option("--html", type=_PATH, help="Write a report with plots to this file.")
@click.option("--peers", type=_PATH, help="Points of other programs for the report, as docs/figures.json has them.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def compare(
    folders: tuple[Path, ...],
    reference: Path | None,
    text: Path | None,
    tokens: int,
    repeat: int,
    html: Path | None,
    peers: Path | None,
    as_json: bool,
) -> None:
    """Put bundles of one model side by side: size, quality and speed.

    \b
    Example:
      onnxlm compare smol-int8 smol-int4 --reference smol --text book.txt --html compare.html
    """
    from runtime.bundle.bundle import open_bundle
    from runtime.bundle.sequence_task import require_generation

    from ..calibration.data import text_to_measure
    from ..evaluation.compare import compare as measure
    from ..evaluation.page import write_page
    from ..evaluation.quality import require_same_model
    from ..evaluation.report import COLUMNS, cells, comparison_report
    from ..summary import columns
    from .report_options import check_report

    if (reference is None) != (text is None):
        raise QuantizationError("quality needs both --reference and --text; leave out both for size and speed only.")
    others = check_report(html, peers)
    opened = [*map(open_bundle, folders)]
    original = None if reference is None else open_bundle(reference)
    for bundle in opened:
        require_generation(bundle, "a comparison of speeds")
        if original is not None:
            require_same_model(bundle, original)
    chosen = text_to_measure(text, original, tokens) if original is not None and text is not None else None
    with stopping_promptly(), show_progress("comparing") as progress:
        rows = measure(folders, reference, chosen, repeat, progress, by_layer=html is not None)
    if html:
        write_page(html, comparison_report(rows, others))
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for line in columns([COLUMNS, *map(cells, rows)], left={0}):
        click.echo(line)
