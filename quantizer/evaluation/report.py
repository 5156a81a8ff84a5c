"""The reports of `eval` and `compare`: what they show."""

from collections.abc import Sequence

from runtime.bundle.manifest import Manifest

from .compare import Row
from .kl import Scores
from .layers import LayerLoss
from .page import page, paragraph, table
from .peers import NO_PEERS, Peers
from .plots import Labels, Point, bar_plot, line_plot, point_plot
from .storage_shares import FLOAT, Kind, find_shares, kinds, layer_of

_OURS = "this model"
_MIB = 2**20
_NATS = "KL divergence, nats per token"
_BITS = "bits per weight, whole file"
_UNMATCHED = "KL by layer was not measured: the layers of the two bundles cannot be exchanged one by one."
COLUMNS = ("bundle", "MiB", "bits/weight", "KL", "KL 99 %", "top-1", "prefill tok/s", "decode tok/s")


def evaluation_report(
    name: str,
    manifest: Manifest,
    scores: Scores,
    layers: LayerLoss | None,
    text: str,
    bits: float,
    peers: Peers = NO_PEERS,
) -> str:
    """One bundle against its reference as a page.

    Args:
        name: of the bundle.
        manifest: of the bundle.
        scores: against the reference.
        layers: KL by layer; None if it could not be measured.
        text: what `scores` were measured on.
        bits: per weight, over the whole file.
        peers: points of other programs.
    """
    parts = [
        table(("figure", "value"), _figures(scores, text, bits)),
        _by_position({name: scores}),
        _by_layer({name: layers}),
        *_sizes(manifest),
    ]
    if peers.entries:
        points = [Point(name, _OURS, bits, scores.kl), *peers.points("bits")]
        parts[1:1] = [point_plot(Labels("Size against quality", _BITS, _NATS), points), _about(peers)]
    return page(name, parts)


def comparison_report(rows: Sequence[Row], peers: Peers = NO_PEERS) -> str:
    """Several bundles as a page: size and speed against quality, KL by position and layer, where bits went."""
    scored = {row.name: row.scores for row in rows if row.scores}
    parts = [table(COLUMNS, [cells(row) for row in rows]), _sizes_of(rows)]
    if scored:
        own = [(row, row.scores.kl) for row in rows if row.scores]
        bits = [Point(row.name, _OURS, row.bits_per_weight, kl) for row, kl in own]
        speed = [Point(row.name, _OURS, row.decode, kl) for row, kl in own]
        bits += peers.points("bits")
        speed += peers.points("tokens_per_second")
        parts[1:1] = [
            point_plot(Labels("Size against quality", _BITS, _NATS), bits),
            point_plot(Labels("Speed against quality", "decode, tokens per second of one sequence", _NATS), speed),
            *([_about(peers)] if peers.entries else []),
            _by_position(scored),
            _by_layer({row.name: row.layers for row in rows if row.scores}),
        ]
    return page("Comparison", parts)


def cells(row: Row) -> tuple[str, ...]:
    """One row of the comparison as text."""
    scores = row.scores
    quality = (f"{scores.kl:.4f}", f"{scores.kl_p99:.3f}", f"{scores.top1:.1%}") if scores else ("–", "–", "–")
    return (
        row.name, f"{row.nbytes / _MIB:.1f}", f"{row.bits_per_weight:.2f}", *quality,
        f"{row.prefill:.0f}", f"{row.decode:.1f}",
    )  # fmt: skip


def _about(peers: Peers) -> str:
    notes = "; ".join(peers.notes) or "it does not say how they were measured"
    return paragraph(f"Points of other programs are those of the file given with --peers, not of this run. {notes}.")


def _figures(scores: Scores, text: str, bits: float) -> list[tuple[str, str]]:
    return [
        (_NATS, f"{scores.kl:.5f}"),
        ("… in the second half of each chunk", f"{scores.kl_late:.5f}"),
        ("… 99 % of tokens below", f"{scores.kl_p99:.4f}"),
        ("top-1 agreement", f"{scores.top1:.2%}"),
        ("perplexity", f"{scores.perplexity:.3f}"),
        ("perplexity of the reference", f"{scores.reference_perplexity:.3f}"),
        ("tokens", f"{scores.tokens:,}"),
        ("text", text),
        (_BITS, f"{bits:.2f}"),
    ]


def _by_position(scores: dict[str, Scores]) -> str:
    lines = {
        name: ([(i + 0.5) * each.bucket for i in range(len(each.kl_by_position))], each.kl_by_position)
        for name, each in scores.items()
    }
    return line_plot(Labels("KL divergence by position", "position in the chunk, tokens", _NATS), lines)


def _by_layer(found: dict[str, LayerLoss | None]) -> str:
    """Bars for one bundle, lines for several."""
    labels = Labels("KL divergence by layer", "the one layer that is quantized (0: with the token table)", _NATS)
    known = {name: losses for name, losses in found.items() if losses}
    if len(known) < len(found) or not known:
        return paragraph(_UNMATCHED)
    if len(known) > 1:
        return line_plot(labels, {n: ([*range(len(each.layers))], each.layers) for n, each in known.items()})
    (losses,) = known.values()
    names = [*map(str, range(len(losses.layers))), "head"]
    return bar_plot(labels, names, {"KL": [*losses.layers, losses.head]})


def _sizes(manifest: Manifest) -> list[str]:
    """Where the bits of one bundle went, and what rounding did to each matrix."""
    shares = find_shares(manifest)
    stacks = {name: [size / _MIB for size in row] for name, row in shares.stored.items()}
    parts = [bar_plot(Labels("Where the bits went", "layer", "weights, MiB"), shares.places, stacks)]
    if manifest.quantization:
        groups = kinds(manifest.quantization.tensors)
        parts += [table(_KIND_COLUMNS, [_kind_cells(kind) for kind in groups]), _errors(groups)]
    return parts


def _sizes_of(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.bytes_by_type))
    stacks = {
        name: [row.bytes_by_type.get(name, 0) / _MIB for row in rows]
        for name in sorted(names, key=lambda name: (name == FLOAT, name))
    }
    return bar_plot(Labels("Where the bits went", "bundle", "weights, MiB"), [row.name for row in rows], stacks)


_KIND_COLUMNS = ("matrix", "count", "stored", "MiB", "mean error", "worst")


def _kind_cells(kind: Kind) -> tuple[str, ...]:
    errors, size = kind.errors, sum(tensor.bytes for tensor in kind.tensors)
    mean = sum(errors) / len(errors)
    return kind.name, f"{len(errors)}", kind.stored, f"{size / _MIB:.1f}", f"{mean:.2%}", f"{max(errors):.2%}"


def _errors(groups: Sequence[Kind]) -> str:
    """‖W − Ŵ‖ / ‖W‖ of every matrix in a layer, a line for each kind."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for kind in groups:
        for tensor in kind.tensors:
            if (layer := layer_of(tensor.name)) is not None:
                lines.setdefault(kind.name.rpartition(".")[2], []).append((layer, tensor.relative_error))
    columns = {name: tuple(zip(*sorted(points), strict=True)) for name, points in lines.items()}
    labels = Labels("Error of the weights by layer", "layer", "relative error, ‖W − Ŵ‖ / ‖W‖")
    return line_plot(labels, {name: (xs, ys) for name, (xs, ys) in columns.items()})
