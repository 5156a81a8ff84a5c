"""The report as one HTML file that needs nothing else."""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from runtime.bundle.manifest import Manifest
from runtime.errors import QuantizationError

from .compare import Row
from .kl import Scores
from .plots import bar_plot, line_plot, scatter_plot

_STYLE = "body{font:15px/1.5 sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}"
_STYLE += "table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:right}"
_STYLE += "td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"


def evaluation_report(name: str, manifest: Manifest, scores: Scores, text: str) -> str:
    """One bundle against its reference: figures, KL by position, error by matrix."""
    figures = [
        ("KL divergence, nats per token", f"{scores.kl:.5f}"),
        ("… in the second half of each chunk", f"{scores.kl_late:.5f}"),
        ("… 99 % of tokens below", f"{scores.kl_p99:.4f}"),
        ("top-1 agreement", f"{scores.top1:.2%}"),
        ("perplexity", f"{scores.perplexity:.3f}"),
        ("perplexity of the reference", f"{scores.reference_perplexity:.3f}"),
        ("tokens", f"{scores.tokens:,}"),
        ("text", text),
    ]
    positions = [(i + 0.5) * scores.bucket for i in range(len(scores.kl_by_position))]
    parts = [
        _table(("figure", "value"), figures),
        line_plot("KL divergence by position", positions, scores.kl_by_position, "position in the chunk", "nats"),
    ]
    if manifest.quantization:
        tensors = manifest.quantization.tensors
        names = [f"{t.name} (int{t.bits} g{t.group_size} +{t.outliers})" for t in tensors]
        parts.append(bar_plot("Relative error by matrix", names, [t.relative_error for t in tensors], "‖W − Ŵ‖ / ‖W‖"))
    return _page(name, parts)


def comparison_report(rows: Sequence[Row]) -> str:
    """Several bundles: the table, and size against quality where it was measured."""
    parts = [_table(COLUMNS, [cells(row) for row in rows])]
    scored = [(row.bits_per_weight, row.scores.kl, row.name) for row in rows if row.scores]
    if scored:
        bits, kls, names = (list(column) for column in zip(*scored, strict=True))
        parts.append(
            scatter_plot("Size against quality", bits, kls, names, "bits per weight", "KL divergence, nats per token")
        )
    return _page("Comparison", parts)


COLUMNS = ("bundle", "MiB", "bits/weight", "KL", "KL 99 %", "top-1", "prefill tok/s", "decode tok/s")


def cells(row: Row) -> tuple[str, ...]:
    """One row of the comparison as text."""
    scores = row.scores
    quality = (f"{scores.kl:.4f}", f"{scores.kl_p99:.3f}", f"{scores.top1:.1%}") if scores else ("–", "–", "–")
    return (
        row.name, f"{row.nbytes / 2**20:.1f}", f"{row.bits_per_weight:.2f}", *quality,
        f"{row.prefill:.0f}", f"{row.decode:.1f}",
    )  # fmt: skip


def require_writable(path: Path) -> None:
    """Refuse a report that could not be written, before anything is computed.

    Raises:
        QuantizationError: its folder does not exist or cannot be written, or a folder is in its place.
    """
    folder = path.absolute().parent
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise QuantizationError(f"{path}: cannot be written. Name a file in a folder that exists and is writable.")


def write_report(path: Path, page: str) -> None:
    """Write a report.

    Raises:
        QuantizationError: it cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise QuantizationError(f"{path}: cannot be written ({error.strerror or error}).") from error


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>{lines}</table>"


def _page(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>\n{body}\n</html>\n"
    )
