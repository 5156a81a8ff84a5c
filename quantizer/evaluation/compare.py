"""Several bundles side by side: size, quality, speed."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.bench.graphs import Bench
from runtime.bundle.bundle import Bundle, open_bundle
from runtime.ort.executor import OnnxExecutor
from runtime.ort.session import choose_provider

from ..calibration.data import Text
from ..progress import Progress
from .kl import Model, Scores, evaluate
from .layers import LayerLoss, kl_by_layer
from .storage_shares import bits_per_weight, find_shares

_PROMPT, _TOKENS = 128, 32


@dataclass(frozen=True)
class Row:
    """One bundle.

    Attributes:
        name: of its folder.
        nbytes: of all its files.
        bits_per_weight: of weights.bin.
        bytes_by_type: of weights.bin: "int4", "int8", "floating point".
        scores: against the reference on the text; None where there is none.
        layers: KL by layer, where it was asked for and the layers can be exchanged.
        prefill, decode: tokens per second.
    """

    name: str
    nbytes: int
    bits_per_weight: float
    bytes_by_type: dict[str, int]
    scores: Scores | None
    layers: LayerLoss | None
    prefill: float
    decode: float


def compare(
    folders: Sequence[Path],
    reference: Path | None,
    text: Text | None,
    repeat: int,
    progress: Progress,
    *,
    by_layer: bool = False,
) -> list[Row]:
    """Measure all bundles, their speeds in turn so that a busy machine slows all alike.

    Args:
        folders: bundles of one model.
        reference: the unquantized one, for scores on `text`.
        text: what to score on; its held-out part is used.
        repeat: rounds of speed measurement.
        progress: is told of each bundle.
        by_layer: also measure what each layer costs, which takes about as long as the scores.
    """
    bundles = [open_bundle(folder) for folder in folders]
    scores = _scores(bundles, reference, text, progress)
    layers = _layers(bundles, reference, text if by_layer else None, progress)
    progress("measuring speed", 0, 1)
    speeds = _speeds(bundles, repeat)
    return [
        Row(
            folder.name,
            _size(bundle),
            bits_per_weight(bundle),
            find_shares(bundle.manifest).totals(),
            score,
            loss,
            *speed,
        )
        for folder, bundle, score, loss, speed in zip(folders, bundles, scores, layers, speeds, strict=True)
    ]


def _scores(
    bundles: Sequence[Bundle], reference: Path | None, text: Text | None, progress: Progress
) -> list[Scores | None]:
    if reference is None or text is None:
        return [None for _ in bundles]
    against = Model(open_bundle(reference))
    found: list[Scores | None] = []
    for bundle in bundles:
        progress(f"evaluating {bundle.folder.name}", len(found), len(bundles))
        found.append(evaluate(Model(bundle), against, text.held_out))
    return found


def _layers(
    bundles: Sequence[Bundle], reference: Path | None, text: Text | None, progress: Progress
) -> list[LayerLoss | None]:
    if reference is None or text is None:
        return [None for _ in bundles]
    against = open_bundle(reference)
    return [kl_by_layer(bundle, against, text.held_out, progress) for bundle in bundles]


def _speeds(bundles: Sequence[Bundle], repeat: int) -> list[tuple[float, float]]:
    """Tokens per second of prefill and of decode, best of the rounds."""
    best = [(0.0, 0.0)] * len(bundles)
    with contextlib.ExitStack() as stack:
        benches = []
        for bundle in bundles:
            prompt = min(_PROMPT, bundle.manifest.architecture.context_length - _TOKENS)
            executor = OnnxExecutor(bundle, choose_provider("auto", bundle), slots=1, context=prompt + _TOKENS)
            stack.callback(executor.close)
            benches.append((Bench(executor, tokens=_TOKENS), prompt))
        for _ in range(repeat):
            for i, (bench, prompt) in enumerate(benches):
                prefill, decode = (speed.fastest for speed in bench.speeds([prompt], [1], 1))
                best[i] = (max(best[i][0], prefill), max(best[i][1], decode))
    return best


def _size(bundle: Bundle) -> int:
    return sum(entry.size for entry in bundle.manifest.files.values())
