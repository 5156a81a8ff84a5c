"""What is learned from text before the first code is chosen: Hessians, and where a budget is spent best."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from runtime.bundle.bundle import Bundle

from .allocation.resume import MeasurementLog
from .allocation.sensitivity import Carried, Sensitivity, sample
from .calibration.data import Text, too_little
from .calibration.hessians import Hessians, IntArray, Step, collect_hessians
from .graph.graphs import Graphs, prefill_graph
from .graph.quantizable import QuantizableWeight, transposed_weights
from .parallel import parallel_map
from .plan import Plan
from .preconditions import budget_bytes, layout_of
from .progress import Progress
from .recipe import Recipe
from .settings import Settings
from .storage.matrix import Floats
from .transforms.discover import find_structure

_LOGGER = logging.getLogger("onnxlm.quantizer")


def prepare(
    bundle: Bundle,
    graphs: Graphs,
    sites: Sequence[QuantizableWeight],
    recipe: Recipe,
    text: Text | None,
    work: Path,
    progress: Progress,
    settings: Settings,
    more: Iterable[IntArray] = (),
) -> Plan:
    """The plan of a run; with text where the recipe needs it, and then with all that can be measured on it.

    Args:
        bundle: float weights.
        graphs: its graphs.
        sites: the matrices to quantize.
        recipe: what was asked for.
        text: to calibrate on.
        work: where an interrupted calibration goes on.
        progress: is told of each layer and matrix.
        settings: how memory and disk are used.
        more: text for experts that see too few tokens of `text`; read as long as there are any.
    """
    prefill = prefill_graph(bundle, graphs)
    structure = find_structure(prefill, bundle.manifest.architecture.vocab_size)
    transposed = transposed_weights(prefill)
    if not recipe.needs_text:
        return Plan(recipe, sites, transposed, structure, None)
    assert text is not None
    if warning := too_little(text.chunks):
        _LOGGER.warning(warning)
    progress("preparing to calibrate", 0, 1)
    hessians: Hessians = collect_hessians(
        bundle, text.chunks, work, partial(_tell, progress), most_kept=settings.most_kept
    )
    _draw(hessians, more, work, progress)
    _warn_of_rare(hessians.experts.rare())
    plan = Plan(recipe, sites, transposed, structure, hessians)
    if recipe.weighs:
        _allocate(bundle, graphs, plan, text.chunks, work, progress, settings)
    else:
        plan.find_outlier_channels(graphs.initializers())
    return plan


def _draw(hessians: Hessians, more: Iterable[IntArray], work: Path, progress: Progress) -> None:
    """Further text until every expert has seen enough, or there is none."""
    rounds = iter(more)
    for number in count(1):
        if not (rare := hessians.experts.rare()) or (chunks := next(rounds, None)) is None:
            return
        lacking = sum(map(len, rare.values()))
        progress(f"drawing {chunks.size:,} tokens for {lacking} experts that saw few", 0, 1)
        hessians.draw(chunks, work / f"drawn{number}")


def _warn_of_rare(rare: Mapping[str, Sequence[int]]) -> None:
    for name, experts in rare.items():
        _LOGGER.warning(
            "%s: experts %s saw too few tokens; what they lack is taken from the layer's other tokens. More text "
            "(--calibration-tokens) would suit them better", name, ", ".join(map(str, experts)),
        )  # fmt: skip


def _tell(progress: Progress, step: Step) -> None:
    progress(f"calibrating on {step.tokens:,} tokens", step.layer, step.layers)


def _allocate(
    bundle: Bundle,
    graphs: Graphs,
    plan: Plan,
    chunks: IntArray,
    work: Path,
    progress: Progress,
    settings: Settings,
) -> None:
    """Measure every matrix alone that can be stored in several ways, then choose how each is stored."""
    several = [site for site in plan.sites if len(plan.candidates(site)) > 1]
    log = MeasurementLog(work / "sensitivity.jsonl", plan.fingerprint)
    left = [site for site in several if site.weight not in log.kls]
    if left:
        _measure(bundle, graphs, plan, left, log, chunks, work / "streams.npz", progress, settings)
    plan.outlier_channels |= log.outlier_channels
    if plan.recipe.time is not None:
        plan.allocate_time(log.measured, plan.recipe.time)
    else:
        plan.allocate(log.measured, _affordable(bundle, graphs, plan), layout_of(graphs))


def _measure(
    bundle: Bundle,
    graphs: Graphs,
    plan: Plan,
    sites: Sequence[QuantizableWeight],
    log: MeasurementLog,
    chunks: IntArray,
    kept: Path,
    progress: Progress,
    settings: Settings,
) -> None:
    """Layer by layer, while a layer's Hessians and weights are in memory; then what the head reads."""
    sensitivity = Sensitivity(bundle, sample(chunks), kept, plan.fingerprint, Carried(most=settings.streams))
    total, ends, tensors = sensitivity.layers + 1, sensitivity.head_weights, graphs.initializers()

    def tried(chosen: Sequence[QuantizableWeight]) -> Iterator[tuple[str, Floats]]:
        plan.find_outlier_channels({site.weight: tensors[site.weight] for site in chosen})
        tasks = (partial(plan.tried, site, tensors[site.weight]) for site in chosen)
        for site, base in zip(chosen, parallel_map(tasks, settings.at_once), strict=True):
            log.add(site.weight, base, plan.outlier_channels.get(site.weight))
            yield site.weight, base.values

    if any(site.weight not in ends for site in sites):
        for layer in range(sensitivity.done, sensitivity.layers):
            progress("measuring sensitivity", layer, total)
            names = sensitivity.weights_of(layer) - ends
            sensitivity.advance(dict(tried([site for site in sites if site.weight in names])))
        log.finish(sensitivity.finish())
    progress("measuring sensitivity", sensitivity.layers, total)
    alone = [site for site in sites if site.weight not in log.kls]
    one_by_one = (pair for site in alone for pair in tried([site]))  # a table can be a quarter of the model
    log.finish({name: sensitivity.kl({name: values}) for name, values in one_by_one})
    kept.unlink(missing_ok=True)


def _affordable(bundle: Bundle, graphs: Graphs, plan: Plan) -> int:
    """Bytes of weights.bin, less those of outlier channels, that may be spent."""
    recipe = plan.recipe
    if recipe.budget is not None:
        return budget_bytes(bundle, recipe.budget) - plan.outlier_bytes
    assert recipe.residual_share is not None
    return int((1 + recipe.residual_share) * plan.stored_bytes(layout_of(graphs)))
