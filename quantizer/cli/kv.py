"""`onnxlm quantize-kv`."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from runtime.cli.terminal.interrupt import stopping_promptly
from runtime.cli.terminal.progress import progress as show_progress

_PATH = click.Path(path_type=Path)


@click.command("quantize-kv")
@click.argument("source", type=_PATH)
@click.option("-o", "--output", required=True, type=_PATH, help="Folder of the new bundle.")
@click.option("--bits", type=click.Choice(["8", "4"]), default="8", show_default=True, help="Bits of keys and values.")
@click.option(
    "--calibration", default="self", show_default=True, metavar="self|FILE", help="Text: .txt, .jsonl, or .npy of ids."
)
@click.option("--calibration-tokens", default=8192, show_default=True, type=click.IntRange(min=1024))
@click.option("--seed", type=int, help="Of the text that the model writes itself.  [default: 0]")
@click.option("--overwrite", is_flag=True, help="Replace a bundle at OUTPUT.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def quantize_kv(
    source: Path,
    output: Path,
    bits: str,
    calibration: str,
    calibration_tokens: int,
    seed: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Store the keys and values of the bundle SOURCE in 8 or 4 bits; its weights stay as they are.

    \b
    Example:
      onnxlm quantize-kv smol-int4 -o smol-int4-kv8
      onnxlm quantize-kv smol-int4 -o smol-int4-kv4 --bits 4 --calibration chats.jsonl
    """
    from runtime.bundle.bundle import open_bundle
    from runtime.host.byte_units import format_bytes

    from ..calibration.data import cache_text
    from ..kv_cache.quantize import quantize_cache
    from ..presets import require_own_text
    from ..recipe import CacheText

    require_own_text(seed, calibration)
    bundle = open_bundle(source)
    with stopping_promptly(), show_progress("quantizing the cache") as progress:
        chosen = CacheText(calibration, calibration_tokens, seed or 0)
        text = cache_text(bundle, chosen, progress)
        manifest, quality = quantize_cache(
            source, output, 8 if bits == "8" else 4, text, chosen=chosen, overwrite=overwrite, progress=progress
        )
    before, after = bundle.manifest.kv_cache.bytes_per_token, manifest.kv_cache.bytes_per_token
    if as_json:
        click.echo(json.dumps({"bytes_per_token": {"before": before, "after": after}, **asdict(quality)}))
        return
    click.echo(
        f"{output}: {format_bytes(after)} per token instead of {format_bytes(before)}; against the old cache KL "
        f"{quality.kl:.4f} nats per token, same first choice {quality.top1:.1%} "
        f"({quality.tokens:,} tokens of {text.measured_on}, in rows of {quality.context:,})"
    )
