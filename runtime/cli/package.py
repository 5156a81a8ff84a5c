"""`onnxlm package`: a bundle and what serves it, as one archive for a machine without a network."""

import json
import tempfile
from pathlib import Path

import click


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The archive. [default: BUNDLE.tar, here]")
@click.option("--wheelhouse", is_flag=True, help="Include the wheels, collected by pip, and an install script.")
@click.option("--wheels", type=click.Path(path_type=Path), help="Include the wheels of this folder instead.")
@click.option("--constraints", type=click.Path(path_type=Path), help="Versions for --wheelhouse, as pip reads them.")
@click.option(
    "--extra", default="cpu", show_default=True, type=click.Choice(["cpu", "gpu"]), help="Which ONNX Runtime."
)
@click.option(
    "--prepared-for",
    multiple=True,
    metavar="PROCESSOR",
    help="Include weights packed for it: this-machine, or a name that `onnxlm prepare --list` shows. Repeatable.",
)
@click.option("--overwrite", is_flag=True, help="Replace an archive that exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the archive and its files as JSON.")
def package(
    bundle: Path,
    output: Path | None,
    wheelhouse: bool,
    wheels: Path | None,
    constraints: Path | None,
    extra: str,
    prepared_for: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
) -> None:
    """Pack BUNDLE into one archive with checksums; with --wheelhouse, everything that an offline machine needs.

    The wheels are those for this machine's kind and Python: package on a machine like the target. There:

    \b
      tar xf smol-int4.tar && sh smol-int4/install.sh /opt/smol

    \b
    Example:
      onnxlm package smol-int4 --wheelhouse
      onnxlm package smol-int4 --prepared-for this-machine
      onnxlm package smol-int4 --wheelhouse --constraints constraints.txt -o edge.tar
    """
    from ..bundle.edge_archive import collect_wheels, make_archive
    from ..errors import OptionError

    target = output or Path(f"{bundle.absolute().name}.tar")  # a link keeps its own name
    if target.exists() and not overwrite:
        raise OptionError(f"{target} exists already. Give another --output, or --overwrite.")
    if wheelhouse and wheels:
        raise click.UsageError("--wheelhouse collects wheels, --wheels has them: give one of the two.")
    beside = [_prepared(bundle, name) for name in prepared_for]
    if wheelhouse:
        with tempfile.TemporaryDirectory() as folder:
            click.echo("collecting wheels …", err=True)
            collect_wheels(Path(folder), extra, constraints)
            files = make_archive(bundle, target, Path(folder), extra, beside)
    else:
        files = make_archive(bundle, target, wheels, extra, beside)
    if as_json:
        click.echo(json.dumps({"archive": str(target), "bytes": target.stat().st_size, "files": files}))
    else:
        click.echo(f"{target}: {len(files)} files, {target.stat().st_size / 1e6:.1f} MB")


def _prepared(bundle: Path, processor: str) -> Path:
    """The folder of weights packed for a processor; for this machine's they are packed now if need be."""
    from ..bundle.bundle import open_bundle
    from ..errors import OptionError
    from ..ort.prepared import weights as prepared

    opened = open_bundle(bundle)
    if processor == "this-machine":
        return (prepared.find(opened) or prepared.make(opened)).folder
    packed = {one.about.target: one.folder for one in prepared.list_prepared_of(opened)}
    if processor not in packed:
        there = ", ".join(sorted(packed)) or "no processor"
        raise OptionError(
            f"--prepared-for {processor}: {bundle} has weights packed for {there}. "
            f"Only a machine with that processor can pack them: run `onnxlm prepare {bundle} --beside` there."
        )
    return packed[processor]
