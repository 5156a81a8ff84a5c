"""`onnxlm inspect`: what a bundle is."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bundle.bundle import Bundle
    from ..bundle.inspection import Inspection, Module
    from ..bundle.manifest import Manifest
    from ..bundle.sequence_task import SequenceTask


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--tensors", is_flag=True, help="List every module's weights instead of one line for all layers.")
@click.option("--verify", is_flag=True, help="Hash every file and compare with the manifest.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, each module included.")
def inspect(bundle: Path, tensors: bool, verify: bool, as_json: bool) -> None:
    """Show what BUNDLE is: its model, sizes, bits per weight, operators, memory per token and measured quality.

    \b
    Example:
      onnxlm inspect smol-int4
      onnxlm inspect smol-int4 --verify --json
    """
    from ..bundle.bundle import open_bundle
    from ..bundle.inspection import inspect_bundle

    with _hashing(bundle, shown=verify) as progress:
        opened = open_bundle(bundle, verify=verify, progress=progress)
    inspection = inspect_bundle(opened)
    if as_json:
        click.echo(json.dumps(_facts(opened, inspection) | {"verified_hashes": verify}, indent=1, ensure_ascii=False))
    else:
        click.echo("\n\n".join(_sections(opened, inspection, tensors)))
        if verify:
            click.echo("\nAll files have their recorded size and SHA-256.")


def _facts(bundle: "Bundle", inspection: "Inspection") -> dict[str, Any]:
    from ..bundle.json_codec import encode
    from ..chat.description import describe_chat

    facts: dict[str, Any] = encode(bundle.manifest)
    facts["chat"] = describe_chat(bundle) if bundle.manifest.task is None else None
    facts["state_bytes"] = bundle.manifest.state_bytes
    facts["bytes"] = sum(entry.size for entry in bundle.manifest.files.values())
    facts["bits_per_weight"] = inspection.bits_per_weight
    facts["operators"] = inspection.operators
    facts["modules"] = [asdict(m) | {"bits_per_weight": m.bits_per_weight} for m in inspection.modules]
    return facts


def _sections(bundle: "Bundle", inspection: "Inspection", tensors: bool) -> Iterator[str]:
    yield _table(_model_lines(bundle))
    yield _table([*_file_lines(bundle, inspection)])
    yield _module_table(inspection.modules) if tensors else _kind_table(inspection.modules)
    for phase, counts in inspection.operators.items():
        listed = ", ".join(f"{count} {name.removeprefix('ai.onnx::')}" for name, count in counts.items())
        yield f"{phase}: {listed}"
    yield _table(_quality_lines(bundle))
    if bundle.manifest.task is None:
        yield _table(_chat_lines(bundle))


def _chat_lines(bundle: "Bundle") -> list[tuple[str, ...]]:
    from ..chat.description import describe_chat

    return [(name, text) for name, text in describe_chat(bundle).items()]


def _model_lines(bundle: "Bundle") -> list[tuple[str, ...]]:
    from ..host.byte_units import format_bytes

    manifest, target = bundle.manifest, bundle.manifest.target
    sizes, source, cache = manifest.architecture, manifest.source, manifest.kv_cache
    layers = Counter(
        f"{layer.num_heads} heads, {layer.kv_heads} of keys and values, width {layer.head_dim}, "
        f"{'all positions' if layer.window is None else f'last {layer.window} positions'}"
        for layer in sizes.layers
    )
    full = format_bytes(cache.bytes_per_token * sizes.context_length)
    origin = [source.name, source.format, source.revision and source.revision[:12], source.licence]
    return [
        ("model", f"{sizes.model_type}, {sizes.parameters / 1e6:.1f} M parameters"),
        ("source", ", ".join(str(part) for part in origin if part)),
        ("written by", f"{manifest.producer.name} {manifest.producer.version}, format {manifest.format_version}"),
        ("runs on", f"{target.provider} in {target.dtype}, ONNX Runtime ≥ {target.min_onnxruntime}"),
        ("sizes", f"hidden {sizes.hidden_size}, vocabulary {sizes.vocab_size}, context {sizes.context_length}"),
        *(("layers", f"{count} × {kind}") for kind, count in layers.items()),
        *(
            _task_lines(manifest.task)
            if manifest.task
            else [("KV cache", f"{format_bytes(cache.bytes_per_token)} per token in {cache.dtype}, {full} in all")]
        ),
        *_state_lines(manifest),
        *_adapter_lines(bundle),
    ]  # fmt: skip


def _task_lines(task: "SequenceTask") -> Iterator[tuple[str, ...]]:
    """Of a model that reads whole texts."""
    length = ", of length 1" if task.normalized else ""
    what = f"a vector of {task.width} numbers{length}" if task.kind == "embed" else f"{task.width} scores"
    yield ("gives", f"{what} per text of at most {task.max_tokens} tokens, by {' and '.join(task.pooling)}")
    if task.labels:
        yield ("labels", ", ".join(task.labels))
    if task.prompts:
        yield ("prompts", ", ".join(f"{name}: {text!r}" for name, text in task.prompts.items()))
    if task.pair_template:
        yield ("pairs", repr(task.pair_template))
    if task.quality:
        found = task.quality
        yield ("quality", f"cosine {found.cosine:.5f}, at least {found.cosine_min:.5f}: {found.texts} {found.text}")


def _adapter_lines(bundle: "Bundle") -> Iterator[tuple[str, ...]]:
    """Nothing, for a bundle that takes no LoRA adapters."""
    from ..adapters.fitting import adapter_ports

    products = len(adapter_ports(bundle))
    if products:
        yield ("adapters", f"taken at run time by {products} products (serve --lora NAME=DIR)")


def _state_lines(manifest: "Manifest") -> Iterator[tuple[str, ...]]:
    """Nothing, for a model whose layers all attend."""
    from ..host.byte_units import format_bytes

    if manifest.state_bytes:
        yield ("states", f"{format_bytes(manifest.state_bytes)} per sequence, of layers without attention")


def _file_lines(bundle: "Bundle", inspection: "Inspection") -> Iterator[tuple[str, ...]]:
    from ..host.byte_units import format_bytes

    files = bundle.manifest.files
    for name, entry in files.items():
        yield (name, f"{format_bytes(entry.size):>10}")
    total = format_bytes(sum(entry.size for entry in files.values()))
    yield ("together", f"{total:>10}, {inspection.bits_per_weight:.2f} bits per weight")


def _kind_table(modules: "tuple[Module, ...]") -> str:
    """The same module of all layers on one line, apart where it is stored differently."""
    from ..host.byte_units import format_bytes

    groups: dict[tuple[str, str], list[Module]] = {}
    for module in modules:
        groups.setdefault((module.kind, module.stored), []).append(module)
    lines = [
        (
            kind if len(members) > 1 else members[0].name,
            f"{len(members)} ×",
            stored,
            _bits(sum(m.bytes for m in members), sum(m.weights for m in members)),
            f"{format_bytes(sum(m.bytes for m in members)):>10}",
            _errors([m.relative_error for m in members if m.relative_error is not None]),
        )
        for (kind, stored), members in groups.items()
    ]
    return _table([("weights", "", "stored as", "bits", "     bytes", "error"), *lines])


def _module_table(modules: "tuple[Module, ...]") -> str:
    from ..host.byte_units import format_bytes

    lines = [
        (m.name, m.stored, _bits(m.bytes, m.weights), f"{format_bytes(m.bytes):>10}", _errors([m.relative_error]))
        for m in modules
    ]
    return _table([("weights", "stored as", "bits", "     bytes", "error"), *lines])


def _bits(size: int, weights: int) -> str:
    return f"{8 * size / weights:.2f}" if weights else "–"


def _errors(errors: "list[float | None] | list[float]") -> str:
    known = [error for error in errors if error is not None]
    return f"{100 * max(known):.1f} %" if known else ""


def _quality_lines(bundle: "Bundle") -> list[tuple[str, ...]]:
    manifest = bundle.manifest
    lines: list[tuple[str, ...]] = []
    difference = manifest.verification.max_difference
    checked = f", largest logit difference {difference:.1e}" if difference is not None else ""
    lines.append(("verified at export", f"{manifest.verification.method}{checked}"))
    if manifest.quantization:
        calibration = manifest.quantization.calibration
        lines.append(("recipe", json.dumps(manifest.quantization.recipe)))
        lines.append(("calibrated on", f"{calibration.source}, {calibration.tokens} tokens"))
    quality = manifest.quality
    if quality is None:
        lines.append(("quality", "not measured" if manifest.quantization else "the unquantized weights"))
    else:
        lines.append(("KL to the source", f"{quality.kl:.4f} nats per token, 99th percentile {quality.kl_p99:.3f}"))
        lines.append(("same first choice", f"{100 * quality.top1:.1f} % of positions"))
        lines.append(("perplexity", f"{quality.perplexity:.3f} (source {quality.reference_perplexity:.3f})"))
        lines.append(("measured on", f"{quality.text}, {quality.tokens} tokens, ONNX Runtime {quality.onnxruntime}"))
    return lines


def _table(rows: list[tuple[str, ...]]) -> str:
    """Columns aligned; control characters, which a bundle from elsewhere may hold, do not reach the terminal."""
    clean = [tuple("".join(c if c.isprintable() else "?" for c in cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in clean)


@contextmanager
def _hashing(folder: Path, *, shown: bool) -> "Iterator[Callable[[int], None] | None]":
    """Progress on stderr while gigabytes are hashed, on a terminal only."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else None
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("hashing", total=total)
        yield lambda size: bar.advance(task, size)
