"""`onnxlm export`: the command line over exporter.export."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from models.targets.registry import PROVIDERS
from quantizer.algorithms.registry import DEFAULT, explain_methods, method_names
from runtime.cli.terminal.interrupt import stopping_promptly
from runtime.cli.terminal.progress import is_quiet, progress
from runtime.host.memory import peak_memory

if TYPE_CHECKING:
    from runtime.bundle.manifest import Manifest

    from .export import ExportReport
    from .options import ExportOptions
    from .weights.estimate import Estimate


class _ExportCommand(click.Command):
    """`--list` needs no SOURCE, and goes with `--json` in either order."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Answer `--list` before anything is asked for."""
        if "--list" in args and not {"--help", "-h"} & {*args}:
            if others := [one for one in args if one not in ("--list", "--json", "-q", "--quiet", "-v", "--verbose")]:
                raise click.UsageError(f"{others[0]} has no effect beside --list: leave out one of the two.", ctx)
            _list_families(as_json="--json" in args)
            ctx.exit()
        return super().parse_args(ctx, args)


def _list_families(*, as_json: bool) -> None:
    from .families import families_as_text, list_families

    click.echo(json.dumps([asdict(one) for one in list_families()], indent=1) if as_json else families_as_text())


@click.command(cls=_ExportCommand, short_help="Turn a checkpoint into a bundle.")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to create.")
@click.option("--target", type=click.Choice([*PROVIDERS]), default="cpu", show_default=True, help="Where it will run.")
@click.option(
    "--target-ort",
    type=click.Choice(["1.31", "1.32"]),
    default="1.31",
    show_default=True,
    help="Oldest ONNX Runtime that must run it; from 1.32 on, several prompts are prefilled at once.",
)
@click.option(
    "--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="Default: float32 (cpu), float16 (cuda)."
)
@click.option(
    "--verify",
    type=click.Choice(["auto", "transformers", "self-consistency", "none"]),
    default="auto",
    show_default=True,
    help="Compare logits with transformers (auto: where it is installed), or prefill with decode, or not at all.",
)
@click.option(
    "--kv",
    type=click.Choice(["dense", "paged"]),
    default="dense",
    show_default=True,
    help="With --target cuda: keys and values in rows of one capacity, or in blocks that sequences take and share.",
)
@click.option(
    "--lora",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of a PEFT LoRA adapter to merge into the weights; repeatable.",
)
@click.option(
    "--lora-inputs", is_flag=True, help="SOURCE is a bundle: make one that takes adapters when it runs (serve --lora)."
)
@click.option("--revision", metavar="REV", help="Branch, tag or commit of a hub id.")
@click.option(
    "--quantize",
    type=click.Choice(["int4", "int8"]),
    help="Pack weights while they are read, in little memory: int4 as quantize --preset fast, int8 as --bits 8.",
)
@click.option(
    "--method",
    type=click.Choice(method_names(needs_text=False)),
    default=DEFAULT,
    show_default=True,
    help=f"With --quantize, how codes are chosen. {explain_methods(method_names(needs_text=False))}",
)
@click.option(
    "--requantize",
    is_flag=True,
    help="Turn a quantized checkpoint into floats, to be quantized anew, instead of keeping its codes.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["bundle", "genai", "transformersjs"]),
    default="bundle",
    show_default=True,
    help="genai: a folder for onnxruntime-genai, over the same weights.bin; transformersjs: one for JavaScript. SOURCE "
    "may be a bundle for genai, and is one for transformersjs.",
)
@click.option("--link-weights", is_flag=True, help="With genai: another name for weights.bin, not a copy.")
@click.option(
    "--ignore-tensor",
    multiple=True,
    metavar="PATTERN",
    help="Tensors known not to matter, such as 'aux.*'; repeatable.",
)
@click.option("--ignore-key", multiple=True, metavar="KEY", help="A config.json key known not to matter; repeatable.")
@click.option(
    "--list",
    is_flag=True,
    expose_value=False,
    help="Print the families that can be exported, and exit.",
)
@click.option(
    "--task",
    type=click.Choice(["generate", "embed", "score"]),
    default="generate",
    show_default=True,
    help="What the bundle does: text, vectors for search, or scores of pairs and texts.",
)
@click.option(
    "--pooling",
    type=click.Choice(["lasttoken", "mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean"]),
    help="With --task embed, where no modules.json says it.",
)
@click.option(
    "--score-tokens", metavar="YES[,NO]", help="With --task score: tokens whose logits score, where no head does."
)
@click.option(
    "--pair-template",
    metavar="NAME|FILE",
    help="With --task score: query and document as one text: qwen3-reranker, or a file with {query} and {document}.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing bundle.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def export(source: Path, output: Path, kind: str, link_weights: bool, as_json: bool, **options: Any) -> None:
    """Turn SOURCE into a bundle: prefill and decode graphs over one weights.bin.

    SOURCE is a Hugging Face folder, a GGUF file or a hub id: "organisation/name" or "organisation/name/file.gguf". The
    commit that a hub id stands for is written into the bundle.

    Weights that are quantized already (GPTQ, AWQ, compressed-tensors, GGUF's Q4_0, Q8_0 and the like) keep their codes,
    to the bit, where most of them can be kept; the report names those that cannot.

    The graphs are verified before the bundle appears; a failed verification leaves nothing.

    SOURCE may be a bundle for the CPU, quantized or not: --target cuda then writes the same codes for a GPU.

    \b
    Example:
      onnxlm export SmolLM2-135M-Instruct.gguf -o smol
      onnxlm export ./Llama-3.2-1B-Instruct -o llama --json
      onnxlm export HuggingFaceTB/SmolLM2-135M-Instruct --revision main -o smol
      onnxlm export ./Llama-3.2-1B-Instruct -o llama-int4 --quantize int4
      onnxlm export ./Llama-3.2-1B-Instruct --lora ./my-adapter -o mine
      onnxlm export ./Qwen3-Embedding-0.6B --task embed -o embedder
      onnxlm export ./Qwen3-Reranker-0.6B --task score --score-tokens yes,no --pair-template qwen3-reranker -o reranker
      onnxlm export smol-int4 --target cuda --dtype bfloat16 --kv paged -o smol-int4-cuda
      onnxlm export smol-int4 --format genai -o smol-genai
      onnxlm export smol-int4 --format transformersjs -o smol-js
    """
    from .options import ExportOptions

    options["ignore_keys"], options["ignore_tensors"] = options.pop("ignore_key"), options.pop("ignore_tensor")
    options["score_tokens"] = tuple((options["score_tokens"] or "").split(",")) if options["score_tokens"] else ()
    if kind == "genai":
        _export_genai(source, output, ExportOptions(**options), link_weights, as_json)
        return
    if kind == "transformersjs":
        _export_transformersjs(source, output, ExportOptions(**options), as_json)
        return
    if link_weights:
        raise click.UsageError("--link-weights belongs to --format genai; a bundle has weights of its own.")
    from .export import export as run_export

    with stopping_promptly(), progress("exporting") as bar:
        report = run_export(source, output, ExportOptions(**options), bar, on_estimate=_say_estimate)
    for warning in report.warnings:
        click.echo(f"Warning: {warning}", err=True)
    click.echo(json.dumps(_summary(report), indent=1) if as_json else _text(report))
    _warn_of_chat(report.folder)


def _warn_of_chat(folder: Path) -> None:
    """Say once, on stderr, that tools cannot be used, where the template shows some."""
    from runtime.bundle.bundle import open_bundle
    from runtime.chat.description import chat_warning

    bundle = open_bundle(folder)
    warning = chat_warning(bundle) if bundle.manifest.task is None else None
    if warning:
        click.echo(f"warning: {warning}", err=True)


def _export_genai(source: Path, output: Path, options: "ExportOptions", link_weights: bool, as_json: bool) -> None:
    from .genai.folder import export_genai

    with stopping_promptly(), progress("exporting") as bar:
        report = export_genai(source, output, options, bar, link_weights=link_weights)
    if as_json:
        click.echo(json.dumps({**asdict(report), "folder": str(report.folder)}))
        return
    checked = (
        "not checked" if report.max_difference is None else f"logits differ by {report.max_difference:.1e} at most"
    )
    weights = "weights.bin is the bundle's own file" if report.linked else "weights.bin is a file of its own"
    click.echo(f"{report.folder}: for onnxruntime-genai; {weights}; {checked}")


def _export_transformersjs(source: Path, output: Path, options: "ExportOptions", as_json: bool) -> None:
    from .transformersjs.folder import export_transformersjs

    options.require_no_choices()
    report = export_transformersjs(source, output, verify=options.verify, overwrite=options.overwrite)
    if as_json:
        click.echo(json.dumps({**asdict(report), "folder": str(report.folder)}))
        return
    checked = (
        "not checked" if report.max_difference is None else f"logits differ by {report.max_difference:.1e} at most"
    )
    click.echo(f"{report.folder}: for transformers.js; {report.graph}, {report.data_files} file of weights; {checked}")


def _say_estimate(needed: "Estimate") -> None:
    if not is_quiet():
        click.echo(f"needs about {_needs(needed)}", err=True)


def _needs(needed: "Estimate") -> str:
    from .weights.estimate import size_text

    reference = f", {size_text(needed.verification)} of them to verify" if needed.verification else ""
    return f"{size_text(needed.disk)} on disk and {size_text(needed.memory)} of memory{reference}"


def _summary(report: "ExportReport") -> dict[str, Any]:
    manifest = report.manifest
    return {
        "bundle": str(report.folder),
        "model_type": manifest.architecture.model_type,
        "parameters": manifest.architecture.parameters,
        "dtype": manifest.target.dtype,
        "matrices": [asdict(outcome) for outcome in report.outcomes],
        "files": {name: entry.size for name, entry in manifest.files.items()},
        "verification": {
            "method": manifest.verification.method,
            "max_difference": manifest.verification.max_difference,
        },
        "warnings": list(report.warnings),
        "seconds": {"export": round(report.export_seconds, 2), "verify": round(report.verify_seconds, 2)},
        "estimate": {
            "disk_bytes": report.estimate.disk,
            "memory_bytes": report.estimate.memory,
            "verification_bytes": report.estimate.verification,
        },
        "peak_rss_bytes": peak_memory(),
    }


def _text(report: "ExportReport") -> str:
    from .weights.estimate import size_text

    facts = _summary(report)
    lines = [f"{name:24} {size / 1e6:10.2f} MB" for name, size in facts["files"].items()]
    lines.append(f"{facts['parameters'] / 1e6:.1f} M parameters as {facts['dtype']}")
    lines += _task_lines(report.manifest)
    lines += _code_lines(report)
    disk = sum(facts["files"].values())
    lines.append(f"{size_text(disk)} on disk (estimated: {size_text(report.estimate.disk)})")
    memory = f"{size_text(facts['peak_rss_bytes'])} of memory at most, mapped files included"
    lines.append(f"{memory} (estimated without: {size_text(report.estimate.memory)})")
    lines.append(_verification_text(report))
    seconds = facts["seconds"]
    lines.append(f"exported in {seconds['export']} s, verified in {seconds['verify']} s → {report.folder}")
    return "\n".join(lines)


def _task_lines(manifest: "Manifest") -> list[str]:
    task = manifest.task
    if task is None:
        return []
    if task.kind == "embed":
        length = "of length 1" if task.normalized else "as they are"
        return [f"embeddings of {task.width} numbers, {length}, by {' and '.join(task.pooling)}"]
    labels = f" ({', '.join(task.labels)})" if task.labels else ""
    return [f"{task.width} score{'s' if task.width > 1 else ''} per text{labels}, shown by {task.activation}"]


def _code_lines(report: "ExportReport") -> list[str]:
    """What became of the codes of a quantized checkpoint, one line for matrices of one fate."""
    if not report.outcomes:
        tensors = report.manifest.quantization.tensors if report.manifest.quantization else ()
        return [f"{len(tensors)} matrices packed while they were read"] if tensors else []
    fates = Counter((outcome.how, outcome.stored_as, outcome.reason) for outcome in report.outcomes)
    words = {"kept": "kept as stored", "packed": "packed anew", "float": "dequantized"}
    return [
        f"{count} matrices {words[how]} ({stored_as}{f': {reason}' if reason else ''})"
        for (how, stored_as, reason), count in fates.items()
    ]


def _verification_text(report: "ExportReport") -> str:
    verification = report.manifest.verification
    if verification.method == "none":
        return "not verified"
    if report.manifest.task is not None and verification.method == "self-consistency":
        text = "verified texts alone against texts in a batch only"
    elif verification.method == "self-consistency":
        text = "verified prefill against decode only, which cannot see a wrongly read weight"
    else:
        text = f"verified against {'the module itself' if verification.method == 'module' else 'transformers'}"
    what = "logit " if report.manifest.task is None else ""
    return f"{text}: largest {what}difference {verification.max_difference:.1e}"
