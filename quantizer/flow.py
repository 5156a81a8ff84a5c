"""The whole flow: a bundle with float weights in, a bundle with packed weights out."""

import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from runtime.bundle import json_codec
from runtime.bundle.bundle import Bundle, new_bundle, open_bundle, write_manifest
from runtime.bundle.manifest import Calibration, Manifest, Quantization

from .calibration.data import Text, find_text
from .evaluation.quality import measure_quality
from .evaluation.sequences import SAMPLES, measure_sequences
from .gate import Gate
from .graph.experts import find_experts
from .graph.graphs import WEIGHTS_NAME, Graphs, load_graphs, prefill_graph
from .graph.quantizable import QuantizableWeight, find_quantizable_weights, merge_quantizable_weights
from .kv_cache.quantize import bits_of, store_cache
from .plan import Plan
from .preconditions import require_affordable, require_text, require_usable
from .preparation import prepare
from .progress import Progress, silent
from .recipe import Recipe
from .selection import select_weights
from .storage.resume import ResumeCache
from .storage.writer import Outcome, copy_other_files, translated, write_graphs

_LOGGER = logging.getLogger("onnxlm.quantizer")


@dataclass(frozen=True)
class Result:
    """The new manifest, and what happened to every matrix."""

    manifest: Manifest
    outcomes: tuple[Outcome, ...]

    @property
    def bits_per_weight(self) -> float:
        """Bits of weights.bin for each parameter of the model, padding included."""
        return 8 * self.manifest.files[WEIGHTS_NAME].size / self.manifest.architecture.parameters


def quantize(
    source: Path,
    target: Path,
    recipe: Recipe,
    *,
    text: Text | None = None,
    gate: Gate | None = None,
    work: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Write a quantized copy of the bundle `source` to the folder `target`: all of it, or nothing.

    Args:
        source: a bundle with float weights.
        target: the new bundle's folder.
        recipe: what to store, and how to choose it.
        text: calibration text in place of the one that the recipe names.
        gate: a bound on the measured quality; the bundle is not written if it is missed.
        work: folder for calibration, which goes on there after a kill and is kept; by default one beside `target`,
            removed in the end.
        overwrite: replace a bundle that is already there.
        progress: is told what is being done, how much of it is done, and how much there is.

    Raises:
        QuantizationError: the bundle is quantized already, a weight is not finite, a pattern matches nothing, the
            budget is impossible, the gate is missed.
        BundleError: `source` cannot be read, or `target` is in the way.
    """
    progress = progress or silent
    if text is None:
        require_text(recipe, gate)
    bundle, graphs, sites = _open(source, recipe, gate)
    default_work = work_beside(target)
    place = work or default_work
    with translated(), new_bundle(target, overwrite=overwrite) as folder:
        text = text or _text(bundle, recipe, gate, place, progress)
        plan = prepare(bundle, graphs, sites, recipe, text, place, progress)
        finished = ResumeCache(place / "matrices" if recipe.needs_text else None, plan.identity)
        outcomes = write_graphs(bundle, graphs, plan, finished, folder, progress)
        copy_other_files(bundle, folder)
        manifest = write_manifest(folder, _describe(bundle.manifest, graphs, plan, text, outcomes))
        if bundle.manifest.task is not None:
            manifest = _measure_texts(bundle, Bundle(folder, manifest), gate, progress)
        elif text is not None:
            manifest = _finish(bundle, Bundle(folder, manifest), recipe, text, gate, progress)
    finished.clear()
    shutil.rmtree(default_work, ignore_errors=True)
    return Result(manifest, tuple(outcomes))


def work_beside(target: Path) -> Path:
    """Where calibration lies until the bundle `target` is complete, if no other folder is named."""
    return target.parent / f".{target.name}.work"


def _text(bundle: Bundle, recipe: Recipe, gate: Gate | None, place: Path, progress: Progress) -> Text | None:
    """The text that the recipe names, if anything needs one."""
    measured = gate and not gate.of_texts
    return find_text(bundle, recipe, place, progress) if recipe.needs_text or recipe.kv or measured else None


def _open(source: Path, recipe: Recipe, gate: Gate | None) -> tuple[Bundle, Graphs, list[QuantizableWeight]]:
    """The float bundle, and which of its matrices are to be quantized."""
    bundle = open_bundle(source)
    require_usable(bundle, recipe, gate)
    graphs = load_graphs(bundle)
    sites = select_weights(_sites(bundle, graphs), recipe.exclude)
    require_affordable(bundle, graphs, sites, recipe)
    return bundle, graphs, sites


def _sites(bundle: Bundle, graphs: Graphs) -> list[QuantizableWeight]:
    """Matrices, and the stacks of experts: where these were exported for the CPU, whose operator was tried."""
    vocab_size = bundle.manifest.architecture.vocab_size
    sites = merge_quantizable_weights(
        find_quantizable_weights(model.graph, vocab_size) for model in graphs.models.values()
    )
    stacks = [site for experts in find_experts(prefill_graph(bundle, graphs)) for site in experts.sites]
    if not stacks or bundle.manifest.target.provider == "cpu":
        return sites + stacks
    _LOGGER.warning(
        "experts stay in floating point: their quantized operator was not tried on %s", bundle.manifest.target.provider
    )
    return sites


def _finish(source: Bundle, new: Bundle, recipe: Recipe, text: Text, gate: Gate | None, progress: Progress) -> Manifest:
    """What follows the weights where there is text: the cache in codes if wanted, and how good all of it is."""
    kv = recipe.kv
    manifest = store_cache(new, bits_of(kv), text, progress) if kv else new.manifest
    return _measure(source, Bundle(new.folder, manifest), text, gate, progress)


def _measure(source: Bundle, new: Bundle, text: Text, gate: Gate | None, progress: Progress) -> Manifest:
    """Compare the new bundle with the old one on text that was held out, and write that into the manifest."""
    quality = measure_quality(open_bundle(new.folder), source, text, progress)
    if gate:
        gate.check(quality, "Nothing was written. ")
    known = {name: entry.sha256 for name, entry in new.manifest.files.items()}
    return write_manifest(new.folder, replace(new.manifest, quality=quality), known=known)


def _measure_texts(source: Bundle, new: Bundle, gate: Gate | None, progress: Progress) -> Manifest:
    """Compare embeddings or scores with the old bundle's, where they can be computed here."""
    task = new.manifest.task
    if task is None or new.manifest.target.provider != "cpu":
        return new.manifest
    quality = measure_sequences(open_bundle(new.folder), source, SAMPLES, "built-in texts", progress)
    if gate:
        gate.check(quality, "Nothing was written. ")
    known = {name: entry.sha256 for name, entry in new.manifest.files.items()}
    return write_manifest(new.folder, replace(new.manifest, task=replace(task, quality=quality)), known=known)


def _describe(manifest: Manifest, graphs: Graphs, plan: Plan, text: Text | None, outcomes: list[Outcome]) -> Manifest:
    tensors = tuple(outcome.tensor for outcome in outcomes if outcome.tensor)
    calibration = (
        Calibration(text.name, text.chunks.size) if text and plan.recipe.needs_text else Calibration("none", 0)
    )
    quantization = Quantization(json_codec.encode(plan.recipe), calibration, tensors)
    operators = {_operator(node) for model in graphs.models.values() for node in model.graph}
    target = replace(manifest.target, operators=tuple(sorted(operators)))
    return replace(manifest, target=target, quantization=quantization, quality=None)


def _operator(node: ir.Node) -> str:
    return f"{node.domain or 'ai.onnx'}::{node.op_type}"
