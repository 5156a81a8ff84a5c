"""What is learned from text before the first code is chosen: Hessians, and where a budget is spent best."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from runtime.bundle.bundle import Bundle

from .allocation.budget import Measured
from .allocation.resume import MeasurementLog
from .allocation.sensitivity import Sensitivity, sample
from .calibration.data import Text, too_little
from .calibration.hessians import Hessians, IntArray, Step, collect_hessians
from .graph.graphs import Graphs, prefill_graph
from .graph.quantizable import QuantizableWeight, transposed_weights
from .parallel import parallel_map
from .plan import Plan
from .preconditions import budget_bytes, layout_of
from .progress import Progress
from .recipe import Recipe
from .transforms.discover import find_structure

_LOGGER = logging.getLogger("onnxlm.quantizer")
_AT_ONCE = 2  # matrices that are tried beside the run of the model


def prepare(
    bundle: Bundle,
    graphs: Graphs,
    sites: Sequence[QuantizableWeight],
    recipe: Recipe,
    text: Text | None,
    work: Path,
    progress: Progress,
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
    """
    prefill = prefill_graph(bundle, graphs)
    structure = find_structure(prefill, bundle.manifest.architecture.vocab_size)
    transposed = transposed_weights(prefill)
    if not recipe.needs_text:
        return Plan(recipe, sites, transposed, structure, None)
    assert text is not None
    if warning := too_little(text.chunks):
        _LOGGER.warning(warning)
    hessians: Hessians = collect_hessians(bundle, text.chunks, work, lambda step: _tell(progress, step))
    _warn_of_rare(hessians.experts.rare())
    plan = Plan(recipe, sites, transposed, structure, hessians)
    plan.find_outlier_channels(graphs.initializers())
    if recipe.weighs:
        _spend(bundle, graphs, plan, text.chunks, work, progress)
    return plan


def _warn_of_rare(rare: Mapping[str, Sequence[int]]) -> None:
    for name, experts in rare.items():
        _LOGGER.warning(
            "%s: experts %s saw too few tokens; what they lack is taken from the layer's other tokens. More text "
            "(--calibration-tokens) would suit them better", name, ", ".join(map(str, experts)),
        )  # fmt: skip


def _tell(progress: Progress, step: Step) -> None:
    progress(f"calibrating on {step.tokens:,} tokens", step.layer, step.layers)


def _spend(bundle: Bundle, graphs: Graphs, plan: Plan, chunks: IntArray, work: Path, progress: Progress) -> None:
    """Measure every matrix alone that can be stored in several ways, then choose how each is stored."""
    tensors = graphs.initializers()
    log = MeasurementLog(work / "sensitivity.jsonl", plan.fingerprint)
    several = [site for site in plan.sites if len(plan.ways(site)) > 1]
    left = [site for site in several if site.weight not in log.measured]
    sensitivity = Sensitivity(bundle, sample(chunks)) if left else None
    tried = parallel_map((partial(plan.tried, site, tensors[site.weight]) for site in left), _AT_ONCE)
    for done, (site, base) in enumerate(zip(left, tried, strict=True), len(several) - len(left)):
        progress("measuring sensitivity", done, len(several))
        assert sensitivity is not None
        log.add(site.weight, Measured(sensitivity.kl({site.weight: base.values}), base.damages))
    plan.spend(log.measured, _affordable(bundle, graphs, plan), layout_of(graphs))


def _affordable(bundle: Bundle, graphs: Graphs, plan: Plan) -> int:
    """Bytes of weights.bin, less those of loud inputs, that may be spent."""
    recipe = plan.recipe
    if recipe.budget is not None:
        return budget_bytes(bundle, recipe.budget) - plan.loud_bytes
    assert recipe.outlier_share is not None
    return int((1 + recipe.outlier_share) * plan.stored_bytes(layout_of(graphs)))
