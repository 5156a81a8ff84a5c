"""`onnxlm prepare`: weights packed for this processor, so that every start maps them instead of packing its own."""

import json
from typing import TYPE_CHECKING

import click

from .source import bundle_of

if TYPE_CHECKING:
    from ..ort.prepared.weights import Prepared


@click.command()
@click.argument("model", required=False)
@click.option("--beside", is_flag=True, help="Write into the bundle's folder, for `package` and read-only systems.")
@click.option("--overwrite", is_flag=True, help="Make it anew where it is there already.")
@click.option("--verify", is_flag=True, help="Read what is there whole, and compare its hashes.")
@click.option("--remove", is_flag=True, help="Remove what was prepared for MODEL, for other processors too.")
@click.option("--list", "listed", is_flag=True, help="List what the cache holds.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def prepare(
    model: str | None, beside: bool, overwrite: bool, verify: bool, remove: bool, listed: bool, as_json: bool
) -> None:
    """Pack the weights of MODEL for this processor and this ONNX Runtime, once, into a file.

    The first start of `run`, `serve` and `runtime.LLM` has this done in the background, into the cache, where weights
    take more than 32 MB; --no-prepare, or ONNXLM_NO_PREPARE=1, turns that off. Every later start maps the file: sooner
    ready, and processes on one model share one copy in memory. Answers are the same to the bit. After an upgrade of
    ONNX Runtime, or on another kind of processor, what was prepared is not used; prepare again there.

    The file lies in $ONNXLM_CACHE/prepared or ~/.cache/onnxlm/prepared, or with --beside in MODEL/prepared. It takes
    two to three times the bytes of the bundle.

    \b
    Example:
      onnxlm prepare smol-int4
      onnxlm prepare smol-int4 --beside
      onnxlm prepare --list
      onnxlm prepare smol-int4 --remove
    """
    from ..bundle.bundle import open_bundle
    from ..bundle.sequence_task import require_generation
    from ..ort.prepared import weights as prepared

    if sum((remove, listed, verify, overwrite or beside)) > 1:
        raise click.UsageError("--remove, --list and --verify stand alone.")
    if listed == (model is not None):
        raise click.UsageError("Give a MODEL, or --list.")
    if model is None:
        return _show(prepared.list_prepared(), as_json)
    bundle = open_bundle(bundle_of(model))
    require_generation(bundle, "preparing weights")
    if remove:
        return _show(prepared.remove(bundle), as_json, "removed ")
    found = prepared.find(bundle)
    if verify:
        if found is None:
            raise click.ClickException(f"{model}: nothing is prepared for this machine. Run: onnxlm prepare {model}")
        prepared.verify(found)
    elif found is None or overwrite or beside:
        found = prepared.make(bundle, beside=beside, overwrite=overwrite)
    return _show([found], as_json)


def _show(found: "list[Prepared]", as_json: bool, verb: str = "") -> None:
    if as_json:
        rows = [
            {"folder": str(one.folder), "bytes": one.size, "processor": one.about.target, "source": one.about.source}
            for one in found
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    for one in found:
        click.echo(f"{verb}{one.folder}  {one.size / 1e6:,.1f} MB  for {one.about.target}  from {one.about.source}")
    if not found:
        click.echo("nothing is prepared", err=True)
