"""`onnxlm bench --kernels`: what `onnxlm quantize --for` counts by, measured here."""

import json
from pathlib import Path

import click

from runtime.bundle import json_codec
from runtime.cli.terminal.interrupt import stopping_promptly
from runtime.cli.terminal.progress import progress as show_progress


def measure(bundle: Path | None, threads: int | None, output: Path | None, *, as_json: bool) -> None:
    """Measure; print a table, or the JSON that `--for FILE` reads, or write that to `output`."""
    from ..costs.measure import measure_kernels
    from ..evaluation.page import require_writable
    from ..summary import columns

    if bundle is not None:
        raise click.UsageError(f"--kernels measures this machine, and reads no bundle: leave out {str(bundle)!r}.")
    if output is not None:
        require_writable(output)
    with stopping_promptly(), show_progress("measuring") as progress:
        table = measure_kernels(progress, threads)
    text = json.dumps(json_codec.encode(table), indent=1)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if as_json:
        click.echo(text)
        return
    rows: list[tuple[str, ...]] = [("kernel", "bits", "group", "ns/weight", "ns/call", "bytes/weight", "GB/s")]
    for kernel in table.kernels:
        speed = kernel.bytes_per_weight / kernel.ns_per_weight if kernel.ns_per_weight else 0.0
        figures = (f"{kernel.ns_per_weight:.4f}", f"{kernel.ns_per_call:.0f}", f"{kernel.bytes_per_weight:.3f}")
        rows.append((kernel.operator, str(kernel.bits), str(kernel.group_size), *figures, f"{speed:.1f}"))
    for line in columns(rows, left={0}):
        click.echo(line)
    click.echo(f"{table.processor}, {table.threads} threads, ONNX Runtime {table.onnxruntime}: {table.how}")
