"""Checkpoint in, bundle out: the whole flow on one page."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.bundle.bundle import new_bundle, write_manifest
from runtime.bundle.manifest import FORMAT_VERSION, Graphs, Manifest, Producer, Verification
from runtime.errors import OptionError

from . import manifest
from .adapter_inputs import with_adapter_inputs
from .checkpoint import open_checkpoint
from .checkpoint.source_hash import SourceHash
from .graph import build_graph, build_sequence_graph
from .kernels import require_kernels
from .manifest import token_warnings
from .options import ExportOptions
from .paged import make_paged
from .retarget import is_bundle, retarget
from .sequence.tokenizer import with_end_token
from .verify.choice import Method, VerificationPlan, plan_verification
from .verify.references import reference_of
from .verify.verify import verify_graphs
from .weights.estimate import Estimate, estimate, require_space
from .weights.plan import WEIGHTS_FILE, plan_weights, without_ignored
from .weights.storage_plan import plan_storage
from .weights.store import Outcome, Storage
from .weights.tying import tie_head

if TYPE_CHECKING:
    import onnx_ir as ir

    from models.decoder.description import Decoder
    from models.decoder.sequence_output import SequenceOutput
    from models.decoder.sources import Table
    from models.targets.target import Target
    from runtime.bundle.sequence_task import SequenceTask

    from .checkpoint import Checkpoint, TensorSource
    from .weights.plan import Weight

__all__ = ["ExportOptions", "ExportReport", "Progress", "export"]

Progress = Callable[[str, int, int], None]  # what is being done, how much is done, how much there is in all


@dataclass(frozen=True)
class ExportReport:
    """What came out: the bundle's manifest, seconds spent on exporting and on verifying, and codes that were kept.

    `estimate` is what was expected of disk and memory. `warnings` are what a user should know: each is a sentence.
    """

    folder: Path
    manifest: Manifest
    export_seconds: float
    verify_seconds: float
    estimate: Estimate
    outcomes: tuple[Outcome, ...] = ()
    warnings: tuple[str, ...] = ()


def export(
    source: Any,
    output: str | Path,
    options: ExportOptions | None = None,
    progress: Progress | None = None,
    *,
    tokenizer: Any = None,
    on_estimate: Callable[[Estimate], None] | None = None,
) -> ExportReport:
    """Write the bundle of a checkpoint. On any failure, verification included, nothing is left behind.

    Args:
        source: a Hugging Face folder, a GGUF file, a hub id, or a live torch module such as a PreTrainedModel; or a
            bundle for the CPU, which becomes one for CUDA (see `retarget`).
        output: the folder to create.
        options: see ExportOptions.
        progress: called with (phase, done, total) while long work goes on.
        tokenizer: of a live module: one of transformers' fast tokenizers.
        on_estimate: is told what disk and memory will be needed, before any weight is read.

    Raises:
        CheckpointError, UnsupportedError: the source cannot be exported; found before weights are read where possible.
        VerificationError: the graphs do not compute what the checkpoint computes.
        BundleError: the output exists.
    """
    options, progress = options or ExportOptions(), progress or _silent
    if is_bundle(source):
        return _export_bundle(source, output, options)
    if options.lora_inputs:
        raise OptionError("lora_inputs: give a bundle. Export the checkpoint first, then that bundle.")
    started = time.monotonic()
    checkpoint = open_checkpoint(source, lora=options.lora, revision=options.revision, tokenizer=tokenizer)
    if options.task != "generate":
        checkpoint = with_end_token(checkpoint)
    plan = _plan(source, checkpoint, options)
    _require_room(output, plan.needed, on_estimate)
    with new_bundle(output, overwrite=options.overwrite) as folder:
        weights_hash = _write_files(folder, checkpoint, plan, progress)
        manifest = _manifest(checkpoint, plan)
        exported = time.monotonic()
        verification, notes = _verify(folder, checkpoint, manifest, plan.verifying, progress)
        verified = time.monotonic()
        manifest = replace(manifest, verification=verification)
        manifest = write_manifest(folder, manifest, known={WEIGHTS_FILE: weights_hash})
    seconds, outcomes = time.monotonic() - started - (verified - exported), tuple(plan.storage.outcomes)
    warnings = _warnings(checkpoint, manifest, plan, notes)
    return ExportReport(Path(output), manifest, seconds, verified - exported, plan.needed, outcomes, warnings)


def _export_bundle(source: Any, output: str | Path, options: ExportOptions) -> ExportReport:
    """The same codes for another provider, or with inputs for adapters."""
    started = time.monotonic()
    made = (with_adapter_inputs if options.lora_inputs else retarget)(source, output, options)
    size = sum(entry.size for entry in made.files.values())
    return ExportReport(Path(output), made, time.monotonic() - started, 0.0, Estimate(size, 0))


@dataclass(frozen=True)
class _Plan:
    """Everything that is known before a weight is read; `needed` of disk and memory."""

    described: "_Described"
    target: "Target"
    models: "dict[str, ir.Model]"
    weights: "list[Weight]"
    storage: Storage
    verifying: VerificationPlan
    needed: Estimate


def _plan(source: Any, checkpoint: "Checkpoint", options: ExportOptions) -> _Plan:
    target = _target(options)
    described = _describe(checkpoint, options)
    decoder, models = described.decoder, _build(described, target, options.kv)
    weights = plan_weights(models["prefill"].graph, decoder, described.table, described.tensors)
    storage = plan_storage([model.graph for model in models.values()], weights, decoder.vocab_size, options)
    verifying = _plan_verification(source, checkpoint, options, weights, described)
    others = sum(map(len, checkpoint.tokenizer_files.values()))
    needed = estimate(weights, storage, verifying.memory, runs=verifying.runs, others=others)
    return _Plan(described, target, models, weights, storage, verifying, needed)


def _warnings(checkpoint: "Checkpoint", manifest: Manifest, plan: _Plan, notes: list[str]) -> tuple[str, ...]:
    described = plan.described
    told = token_warnings(checkpoint, manifest.tokens, described.decoder.vocab_size, generates=described.task is None)
    planned = (*described.warnings, *plan.storage.warnings, *told, *plan.verifying.warnings)
    return (*checkpoint.warnings, *planned, *notes)


@dataclass(frozen=True)
class _Described:
    """The model as data, and the tensors it is made of; `output` and `task` of one that reads whole texts."""

    decoder: "Decoder"
    table: "Table"
    tensors: "Mapping[str, TensorSource]"
    output: "SequenceOutput | None" = None
    task: "SequenceTask | None" = None
    answer_tokens: tuple[int, int | None] | None = None
    warnings: tuple[str, ...] = ()


def _describe(checkpoint: "Checkpoint", options: ExportOptions) -> _Described:
    from models.families.registry import describe as describe_decoder

    from .sequence.plan import generation_tensors, plan_sequence

    if options.task != "generate":
        plan = plan_sequence(checkpoint, options)
        return _Described(plan.decoder, plan.table, plan.tensors, plan.output, plan.task, plan.answer_tokens)
    decoder, table = describe_decoder(checkpoint.config, options.ignore_keys)
    tensors, warnings = generation_tensors(checkpoint)
    decoder, tensors = tie_head(decoder, table, without_ignored(tensors, options.ignore_tensors))
    return _Described(decoder, table, tensors, warnings=warnings)


def _build(described: _Described, target: "Target", kv: str) -> "dict[str, ir.Model]":
    if described.output is not None:
        return {"prefill": build_sequence_graph(described.decoder, described.output, target)}
    models = {role: build_graph(described.decoder, target, role) for role in ("prefill", "decode")}
    if kv == "paged":
        models["paged"] = make_paged(build_graph(described.decoder, target, "prefill"))
        require_kernels(models["paged"].graph, target)
    return models


def _require_room(output: str | Path, needed: Estimate, on_estimate: Callable[[Estimate], None] | None) -> None:
    """What the export will need; told first, and then refused if the disk has less."""
    if on_estimate:
        on_estimate(needed)
    require_space(output, needed)


def _write_files(folder: Path, checkpoint: "Checkpoint", plan: _Plan, progress: Progress) -> str:
    """Write everything but the manifest, and hash the source meanwhile; the hash of weights.bin."""
    from quantizer.graph.saving import save_rewritten
    from quantizer.storage.weights_file import WeightsWriter

    source_hash, storage = SourceHash(checkpoint), plan.storage
    done, total = 0, sum(weight.nbytes for weight in plan.weights)
    with WeightsWriter(folder / WEIGHTS_FILE) as writer:
        for weight in plan.weights:
            storage.write(writer, weight)
            done += weight.nbytes
            progress("writing weights", done, total)
        files = {f"{role}.onnx": model for role, model in plan.models.items()}
        save_rewritten(files, storage.stored, writer.placed, storage.provider, folder)
        for name, content in checkpoint.tokenizer_files.items():
            (folder / name).write_bytes(content)
    source_hash.wait()
    return writer.sha256


def _plan_verification(
    source: Any, checkpoint: "Checkpoint", options: ExportOptions, weights: "list[Weight]", described: _Described
) -> VerificationPlan:
    reference = reference_of(source, checkpoint, options.lora)
    if described.task is not None:
        from .sequence.verify import sequence_reference

        reference = sequence_reference(checkpoint, described.task, described.answer_tokens)
    parameters = manifest.count_parameters(weights)
    stacks = [manifest.count_parameters([it]) for it in weights if it.plan.stacked and len(it.sources) > 1]
    # transformers reads a folder layer by layer: matrices, then stacks of each kind, then both kinds as one. What it is
    # given it holds twice, as matrices and as stacks.
    beside = 2 * max(stacks, default=0) if checkpoint.format == "safetensors" else sum(stacks)
    return plan_verification(reference, _method(options), options.target, parameters, beside)


def _verify(
    folder: Path, checkpoint: "Checkpoint", manifest: Manifest, plan: VerificationPlan, progress: Progress
) -> tuple[Verification, list[str]]:
    if not plan.runs:
        return Verification("none", None), []
    if manifest.task is not None:
        from .sequence.verify import verify_sequences

        return verify_sequences(folder, manifest, plan.reference, progress)
    stored = checkpoint.path / "tokenizer.json" if checkpoint.path is not None else None
    own = stored is not None and stored.is_file() and stored.read_bytes() == (folder / "tokenizer.json").read_bytes()
    return verify_graphs(folder, manifest, plan.reference, progress, own_tokenizer=own)


def _method(options: ExportOptions) -> Method:
    """Packed weights are not the reference's."""
    return "self-consistency" if options.quantize and options.verify == "auto" else options.verify


def _manifest(checkpoint: "Checkpoint", plan: _Plan) -> Manifest:
    decoder, models = plan.described.decoder, plan.models
    graphs = {role: manifest.describe_graph(model.graph, f"{role}.onnx") for role, model in models.items()}
    return Manifest(
        format_version=FORMAT_VERSION,
        producer=_producer(),
        architecture=manifest.describe_architecture(decoder, plan.weights),
        graphs=Graphs(**graphs),
        kv_cache=manifest.describe_cache(decoder, plan.target),
        tokens=manifest.describe_tokens(checkpoint, decoder.vocab_size),
        target=manifest.describe_target(plan.target, [model.graph for model in models.values()]),
        source=manifest.describe_source(checkpoint),
        verification=Verification("none", None),
        quantization=plan.storage.quantization(),
        task=plan.described.task,
    )


def _target(options: ExportOptions) -> "Target":
    from models.targets.registry import PROVIDERS
    from models.targets.target import Target

    dtype = options.dtype or PROVIDERS[options.target].dtypes[0]
    return Target(options.target, dtype, options.target_ort)


def _producer() -> Producer:
    from importlib.metadata import version

    return Producer("onnxlm", version("onnxlm"))


def _silent(phase: str, done: int, total: int) -> None:
    """The progress of a caller who asked for none."""
