"""What a command may be given as a model: a bundle, or a checkpoint that is made into one on the way."""

import importlib
from pathlib import Path

import click

from ..errors import MissingDependencyError
from ..host.made_bundles import recall, remember
from .terminal.progress import progress

_HUB_PREFIX = "hf:"


def bundle_of(source: str | Path, *, verify: bool = False) -> Path:
    """The bundle of a source: itself, or of a checkpoint the bundle in the cache, made now if it is not there.

    Args:
        source: a bundle, a checkpoint, or "hf:organisation/name".
        verify: compare the hash of every file with the manifest before it is used.

    Raises:
        CheckpointError, UnsupportedError: the checkpoint cannot be exported.
        MissingDependencyError: exporting needs packages that are not installed here.
        IntegrityError: a file was altered.
    """
    folder = _made(source) if is_checkpoint(source) else Path(source)
    if verify:
        _verify(folder)
    return folder


def _verify(folder: Path) -> None:
    from ..bundle.bundle import open_bundle

    total, done = sum(entry.size for entry in open_bundle(folder).manifest.files.values()), 0
    with progress("verifying") as show:

        def count(size: int) -> None:
            nonlocal done
            done += size
            show("verifying", done, total)

        open_bundle(folder, verify=True, progress=count)


def _made(source: str | Path) -> Path:
    is_local = not str(source).startswith(_HUB_PREFIX)
    if is_local and (found := recall(source)):
        return found
    try:
        module = importlib.import_module("exporter.model_cache")
        with progress("preparing") as show:
            folder: Path = module.cached_bundle(source, show, lambda line: click.echo(line, err=True))
            if is_local:
                remember(source, folder)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{source} is a checkpoint, and making a bundle of it needs the package {error.name!r}: "
            "pip install 'onnxlm[export]', or export it elsewhere and copy the bundle."
        ) from error
    return folder


def name_of(source: str | Path) -> str:
    """The name that a source is served under: of its folder, or of its file without the ending."""
    text = str(source)
    if text.startswith(_HUB_PREFIX):
        return text.removeprefix(_HUB_PREFIX).partition("@")[0].rpartition("/")[2].removesuffix(".gguf")
    return Path(source).absolute().name.removesuffix(".gguf")  # a link keeps its own name


def is_checkpoint(source: str | Path) -> bool:
    """Whether a source is to be exported first: a GGUF file, a hub id, or a folder with config.json or GGUF files."""
    path = Path(source)
    if path.is_dir():
        return not (path / "manifest.json").is_file() and ((path / "config.json").is_file() or any(path.glob("*.gguf")))
    return str(source).startswith(_HUB_PREFIX) or path.suffix == ".gguf"
