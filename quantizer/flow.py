"""The whole flow: a bundle with float weights in, a bundle with packed weights out."""

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from runtime.bundle import json_codec
from runtime.bundle.bundle import Bundle, new_bundle, open_bundle, write_manifest
from runtime.bundle.manifest import Calibration, Manifest, Quantization

from .calibration.data import IntArray, Text, cache_text, draw_text, find_text, own_text_file
from .evaluation.quality import measure_quality
from .evaluation.sequences import SAMPLES, measure_sequences
from .forecast.forecast import Forecast
from .forecast.run import Run, most_kept, run_on
from .forecast.sizes import sizes_of
from .forecast.speed import this_machine
from .gate import Gate
from .graph.experts import find_experts
from .graph.graphs import Graphs, load_graphs, prefill_graph
from .graph.quantizable import QuantizableWeight, find_quantizable_weights, merge_quantizable_weights
from .kv_cache.quantize import bits_of, store_cache
from .plan import Plan
from .preconditions import require_affordable, require_text, require_usable
from .preparation import prepare
from .presets import Storage, make_recipe
from .progress import Progress, silent
from .recipe import Recipe
from .selection import select_weights
from .settings import Settings
from .storage.bundle_files import copy_other_files, translated
from .storage.resume import ResumeCache
from .storage.weights_file import WEIGHTS_NAME
from .writer import Outcome, write_graphs

_LOGGER = logging.getLogger("onnxlm.quantizer")


@dataclass(frozen=True)
class Result:
    """The new manifest, and what happened to every matrix."""

    manifest: Manifest
    outcomes: tuple[Outcome, ...]

    @property
    def bits_per_weight(self) -> float:
        """Bits of weights.bin for each parameter of the model, padding included."""
        return self.manifest.bits_per_weight


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
    memory: int | None = None,
    on_forecast: Callable[[Forecast], None] | None = None,
) -> Result:
    """Write a quantized copy of the bundle `source` to the folder `target`, completely or not at all.

    Args:
        source: a bundle with float weights.
        target: the new bundle's folder.
        recipe: what to store, and how to choose it.
        text: calibration text in place of the one that the recipe names.
        gate: a bound on the measured quality; the bundle is not written if it is missed.
        work: folder for calibration, which goes on there after a kill and is kept; by default one beside `target`,
            removed in the end.
        overwrite: replace a bundle that is already there.
        progress: called with the phase, the work done and the total work.
        memory: bytes that may be used; by default what is free.
        on_forecast: is told what the run will take, before it begins.

    Raises:
        QuantizationError: bundle or recipe cannot be used so, memory or disk do not suffice, the gate is missed.
        BundleError: `source` cannot be read, or `target` is in the way.
    """
    if text is None:
        require_text(recipe, gate)
    job = _Job(*_open(source, recipe, gate), recipe, gate, work or work_beside(target), progress or silent)
    settings = _settings(job, text, target, memory, most_kept(work), on_forecast)
    with translated(), new_bundle(target, overwrite=overwrite) as folder:
        result, finished = _write(job, text, settings, folder)
    finished.clear()
    shutil.rmtree(work_beside(target), ignore_errors=True)
    return result


@dataclass(frozen=True)
class _Job:
    """What a run works on: the float bundle, which of its matrices, and the recipe; work files lie in `place`."""

    bundle: Bundle
    graphs: Graphs
    sites: list[QuantizableWeight]
    recipe: Recipe
    gate: Gate | None
    place: Path
    progress: Progress


def _settings(
    job: _Job,
    text: Text | None,
    target: Path,
    memory: int | None,
    most: int,
    on_forecast: Callable[[Forecast], None] | None,
) -> Settings:
    """How the run goes about it in the memory that there is; refused if memory or disk are too small for any way."""
    run = _run(job.bundle, job.graphs, job.sites, job.recipe, job.gate, text, job.place, most)
    settings, expected = run.forecast(this_machine() if on_forecast else None, memory)
    if on_forecast:
        on_forecast(expected)
    expected.require_room(target)
    return settings


def _write(job: _Job, text: Text | None, settings: Settings, folder: Path) -> tuple[Result, ResumeCache]:
    """All files of the new bundle, measured; and the matrices that are kept until it is complete."""
    bundle, recipe, progress = job.bundle, job.recipe, job.progress
    given, text = text, text or _text(bundle, recipe, job.gate, job.place, progress, settings)
    more = _further_text(job, text, settings) if text is not None and given is None else ()
    plan = prepare(bundle, job.graphs, job.sites, recipe, text, job.place, progress, settings, more)
    finished = ResumeCache(job.place / "matrices" if recipe.needs_text else None, plan.identity)
    outcomes, known = write_graphs(bundle, job.graphs, plan, finished, folder, progress, settings.at_once)
    copy_other_files(bundle, folder)
    described = _describe(bundle.manifest, job.graphs, plan, text, outcomes)
    manifest = write_manifest(folder, described, known=known)
    if bundle.manifest.task is not None:
        manifest = _measure_texts(bundle, Bundle(folder, manifest), job.gate, progress)
    elif text is not None:
        manifest = _finish(bundle, Bundle(folder, manifest), recipe, text, job.gate, progress)
    return Result(manifest, tuple(outcomes)), finished


def forecast(
    source: Path,
    target: Path,
    recipe: Recipe,
    *,
    gate: Gate | None = None,
    work: Path | None = None,
    memory: int | None = None,
) -> Forecast:
    """What `quantize` will take; arguments and errors as there. Nothing is written.

    Raises:
        QuantizationError, BundleError: as `quantize`, where it is known before the work.
    """
    require_text(recipe, gate)
    bundle, graphs, sites = _open(source, recipe, gate)
    run = _run(bundle, graphs, sites, recipe, gate, None, work or work_beside(target), most_kept(work))
    return run.forecast(this_machine(), memory)[1]


def _run(
    bundle: Bundle,
    graphs: Graphs,
    sites: Sequence[QuantizableWeight],
    recipe: Recipe,
    gate: Gate | None,
    text: Text | None,
    place: Path,
    most: int,
) -> Run:
    reads = _reads_text(recipe, gate) or text is not None
    own = reads and text is None and recipe.calibration == "self" and not own_text_file(recipe, place).is_file()
    manifest = bundle.manifest
    vocabulary, parameters = manifest.architecture.vocab_size, manifest.architecture.parameters
    weights, kv = manifest.files[WEIGHTS_NAME].size, manifest.kv_cache.bytes_per_token
    sizes = sizes_of(prefill_graph(bundle, graphs), sites, vocabulary, kv, weights)
    return run_on(sizes, parameters, recipe, own_text=own, measured=reads, most_kept=most)


def work_beside(target: Path) -> Path:
    """Where calibration lies until the bundle `target` is complete, if no other folder is named."""
    return target.parent / f".{target.name}.work"


def _text(
    bundle: Bundle, recipe: Recipe, gate: Gate | None, place: Path, progress: Progress, settings: Settings
) -> Text | None:
    """The text that the recipe names, if anything needs one."""
    if not _reads_text(recipe, gate):
        return None
    if recipe.calibration != "self" or own_text_file(recipe, place).is_file():
        return find_text(bundle, recipe, place, progress, settings.rows)
    progress("writing calibration text", 0, 1)
    with _writer(bundle, place, settings) as writer:
        return find_text(writer, recipe, place, progress, settings.rows)


def _further_text(job: _Job, text: Text, settings: Settings) -> Iterator[IntArray]:
    """For experts that see too little of `text`; none is read or written unless it is asked for."""
    with _writer(job.bundle, job.place, settings) if text.name == "self" else nullcontext(job.bundle) as writer:
        yield from draw_text(text, writer, job.recipe, job.place, job.progress, settings.rows)


def _writer(bundle: Bundle, place: Path, settings: Settings) -> AbstractContextManager[Bundle]:
    """What writes the model's own text."""
    return nullcontext(bundle) if settings.text_bits == 32 else _rounded(bundle, place / "writer", settings.text_bits)


@contextmanager
def _rounded(bundle: Bundle, folder: Path, bits: int) -> Iterator[Bundle]:
    """A copy whose weights take little memory, for as long as it is needed."""
    try:
        quantize(bundle.folder, folder, make_recipe(method="rtn", storage=Storage(bits=bits)), overwrite=True)
        yield open_bundle(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reads_text(recipe: Recipe, gate: Gate | None) -> bool:
    """Whether anything needs a text: samples of a gate on sequences are no text."""
    return recipe.needs_text or recipe.kv is not None or (gate is not None and not gate.of_texts)


def _open(source: Path, recipe: Recipe, gate: Gate | None) -> tuple[Bundle, Graphs, list[QuantizableWeight]]:
    """The float bundle, and which of its matrices are to be quantized."""
    bundle = open_bundle(source)
    require_usable(bundle, recipe, gate)
    graphs = load_graphs(bundle)
    models = [model.graph for model in graphs.models.values()]
    experts = bundle.manifest.target.provider == "cpu"
    sites = sites_of(models, bundle.manifest.architecture.vocab_size, recipe, experts=experts)
    require_affordable(bundle, graphs, sites, recipe)
    return bundle, graphs, sites


def sites_of(
    graphs: Sequence[ir.Graph], vocabulary: int, recipe: Recipe, *, experts: bool = True
) -> list[QuantizableWeight]:
    """The matrices of prefill and decode graph that a recipe quantizes, and the stacks of experts where `experts` may
    have codes: those exported for the CPU, whose operator was tried.

    Raises:
        QuantizationError: a pattern of `exclude` matches nothing, or nothing is left.
    """
    sites = merge_quantizable_weights(find_quantizable_weights(graph, vocabulary) for graph in graphs)
    stacks = [site for found in find_experts(graphs[0]) for site in found.sites]
    if stacks and not experts:
        _LOGGER.warning("experts stay in floating point: their quantized operator was not tried on this provider")
    return select_weights(sites + stacks if experts else sites, recipe.exclude)


def _finish(source: Bundle, new: Bundle, recipe: Recipe, text: Text, gate: Gate | None, progress: Progress) -> Manifest:
    """The steps after the weights: quantize the cache if wanted, then measure the quality."""
    kv = recipe.kv
    scaled_on = cache_text(new, recipe.kv_text, progress) if recipe.kv_text else text
    manifest = store_cache(new, bits_of(kv), scaled_on, progress) if kv else new.manifest
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
    used = plan.recipe
    if text is not None and _reads_text(used, None):
        used = replace(used, text_sha256=text.file_sha256, tokens_sha256=text.tokens_sha256)
    quantization = Quantization(json_codec.encode(used), calibration, tensors)
    operators = {_operator(node) for model in graphs.models.values() for node in model.graph}
    target = replace(manifest.target, operators=tuple(sorted(operators)))
    return replace(manifest, target=target, quantization=quantization, quality=None)


def _operator(node: ir.Node) -> str:
    return f"{node.domain or 'ai.onnx'}::{node.op_type}"
