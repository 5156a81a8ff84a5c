"""`onnxlm eval`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.cli.terminal.interrupt import stopping_promptly
from runtime.cli.terminal.progress import progress as show_progress
from runtime.errors import QuantizationError

from ..gate import OF_TEXTS

if TYPE_CHECKING:
    from runtime.bundle.bundle import Bundle
    from runtime.bundle.manifest import Quality

    from ..evaluation.kl import Scores
    from ..evaluation.probes import Probe
    from ..gate import Gate

_RECALL = (256, 1024, 4096)  # tokens of the contexts for recall
_TOKENS, _CONTEXT = 8192, 512
_PATH = click.Path(path_type=Path)


@click.command("eval")
@click.argument("folder", type=_PATH)
@click.option("--reference", required=True, type=_PATH, help="The bundle it was made from.")
@click.option("--text", required=True, type=_PATH, help="Text: .txt, .jsonl, or .npy of token ids.")
@click.option("--tokens", type=click.IntRange(min=2), help="Most tokens to compare.  [default: 8192]")
@click.option("--context", type=click.IntRange(min=2), help="Tokens of each chunk.  [default: 512]")
@click.option("--abilities", is_flag=True, help="Also ask for recall from long contexts, arithmetic and copying.")
@click.option("--fail-if", metavar="CONDITION", help="Exit with an error if so: 'kl>0.06', 'top1<0.9'.")
@click.option("--html", type=_PATH, help="Write a report with plots to this file.")
@click.option("--peers", type=_PATH, help="Points of other programs for the report, as docs/figures.json has them.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def evaluate(
    folder: Path,
    reference: Path,
    text: Path,
    tokens: int | None,
    context: int | None,
    abilities: bool,
    fail_if: str | None,
    html: Path | None,
    peers: Path | None,
    as_json: bool,
) -> None:
    """Compare the bundle FOLDER with its reference: KL divergence, agreement and perplexity on a text.

    Embeddings and scores are compared by their cosine similarity, on a text per line.

    \b
    Example:
      onnxlm eval smol-int4 --reference smol --text book.txt
    """
    from runtime.bundle.bundle import open_bundle

    from ..gate import parse_gate
    from .report_options import check_report

    gate = parse_gate(fail_if) if fail_if else None
    others = check_report(html, peers)
    ours, theirs = open_bundle(folder), open_bundle(reference)
    if ours.manifest.task is not None or theirs.manifest.task is not None:
        _evaluate_texts(ours, theirs, text, gate, html or abilities or tokens or context, as_json)
        return
    if gate and gate.of_texts:
        raise QuantizationError(f"--fail-if {gate.figure}: that is of embeddings and scores. {folder} generates.")
    measured = _measure(
        ours, theirs, text, (tokens or _TOKENS, context or _CONTEXT), layers=html is not None, abilities=abilities
    )
    if html:
        _write_report(html, ours, text, measured, others)
    if as_json:
        click.echo(json.dumps(measured.as_data(), indent=1))
    else:
        _print_figures(measured.quality, measured.context, measured.rounding, measured.asked)
    if gate:
        gate.check(measured.quality)


@dataclass(frozen=True)
class _Measured:
    """What was found of a bundle that generates, in chunks of `context` tokens; None where it was not asked for."""

    context: int
    scores: "Scores"
    quality: "Quality"
    rounding: "Scores | None"
    layers: Any
    asked: "list[Probe]"

    def as_data(self) -> dict[str, Any]:
        """For --json."""
        rounding = asdict(self.rounding) if self.rounding else None
        return asdict(self.scores) | {"activation_rounding": rounding, "abilities": [*map(asdict, self.asked)]}


def _measure(
    ours: "Bundle", theirs: "Bundle", text: Path, size: tuple[int, int], *, layers: bool, abilities: bool
) -> _Measured:
    """`size`: most tokens, and tokens of a chunk."""
    from ..calibration.data import text_to_measure
    from ..evaluation.layers import kl_by_layer
    from ..evaluation.probes import compare_probes
    from ..evaluation.quality import activation_rounding, as_quality, measure_scores, require_same_model

    require_same_model(ours, theirs)
    chosen = text_to_measure(text, theirs, *size)
    with stopping_promptly(), show_progress("evaluating") as progress:
        scores = measure_scores(ours, theirs, chosen, progress)
        rounding = activation_rounding(ours, chosen)
        by_layer = kl_by_layer(ours, theirs, chosen.held_out, progress) if layers else None
        asked = compare_probes(ours.folder, theirs.folder, _RECALL, progress) if abilities else []
    return _Measured(chosen.held_out.shape[1], scores, as_quality(scores, chosen), rounding, by_layer, asked)


def _write_report(html: Path, ours: "Bundle", text: Path, measured: _Measured, others: Any) -> None:
    from ..evaluation.page import write_page
    from ..evaluation.report import evaluation_report
    from ..evaluation.storage_shares import bits_per_weight

    name, bits = ours.folder.name, bits_per_weight(ours)
    write_page(html, evaluation_report(name, ours.manifest, measured.scores, measured.layers, text.name, bits, others))


def _evaluate_texts(
    ours: "Bundle", theirs: "Bundle", path: Path, gate: "Gate | None", others: object, as_json: bool
) -> None:
    """Of embeddings and scores; each line of the file is a text."""
    from ..evaluation.sequences import measure_sequences, require_same_task

    if others:
        raise click.UsageError("--html, --abilities, --tokens and --context are of models that generate text.")
    if gate and not gate.of_texts:
        raise QuantizationError(f"--fail-if {gate.figure}: of embeddings and scores there are {', '.join(OF_TEXTS)}.")
    require_same_task(ours, theirs)
    try:
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise QuantizationError(f"{path}: not UTF-8 text ({error}).") from error
    with stopping_promptly(), show_progress("evaluating") as progress:
        quality = measure_sequences(ours, theirs, texts, path.name, progress)
    if as_json:
        click.echo(json.dumps(asdict(quality), indent=1))
    else:
        click.echo(f"cosine similarity  {quality.cosine:.6f} in the mean, {quality.cosine_min:.6f} at least")
        click.echo(f"largest difference {quality.max_difference:.6f} of a number")
        click.echo(f"texts              {quality.texts:,} of {quality.text}")
    if gate:
        gate.check(quality)


def _print_figures(quality: "Quality", context: int, rounding: "Scores | None", asked: "list[Probe]") -> None:
    click.echo(f"KL divergence   {quality.kl:.5f} nats per token, 99 % of tokens below {quality.kl_p99:.4f}")
    click.echo(f"top-1 agreement {quality.top1:.2%}")
    click.echo(f"perplexity      {quality.perplexity:.4f}, reference {quality.reference_perplexity:.4f}")
    click.echo(f"text            {quality.text}, {quality.tokens:,} tokens in chunks of {context}")
    if rounding:
        click.echo(
            f"activations     rounded to 8 bits: KL {rounding.kl:.5f} of it, top-1 agreement {rounding.top1:.2%}"
        )
    for ability in asked:
        figures = f"{ability.agreement:.0%} of the reference's answers, margin {ability.margin:+.3f} nats per token"
        click.echo(f"{ability.name}: {figures} ({ability.questions} questions)")
