"""What `onnxlm quantize` is given: a bundle, or a checkpoint that becomes a float bundle on the way."""

import importlib
import shutil
from hashlib import sha256
from pathlib import Path

import click

from runtime.bundle.bundle import open_bundle
from runtime.bundle.manifest import MANIFEST_NAME
from runtime.cli.terminal.progress import Progress
from runtime.errors import OnnxlmError

_FLOATS = "float-"  # begins the name of the bundle in the work folder


def float_bundle(source: Path, work: Path, progress: Progress) -> Path:
    """`source` itself if it is a bundle; of a checkpoint its float bundle in `work`, made now or by an earlier run.

    Raises:
        OnnxlmError: the checkpoint cannot be exported.
    """
    if not is_checkpoint(source):
        return source
    target = work / f"{_FLOATS}{_key(source)}"
    if _is_whole(target):
        return target
    _remove_others(work)
    try:
        export = importlib.import_module("exporter.export")  # the command line alone knows all packages
        options = importlib.import_module("exporter.options").ExportOptions
    except ModuleNotFoundError as error:
        raise missing_package(error) from error
    export.export(source, target, options(requantize=True, overwrite=True), progress)
    return target


def is_checkpoint(source: Path) -> bool:
    """Whether `source` is a Hugging Face folder or a GGUF file rather than a bundle."""
    if (source / MANIFEST_NAME).is_file():
        return False
    return source.suffix == ".gguf" or (source / "config.json").is_file()


def missing_package(error: ModuleNotFoundError) -> click.ClickException:
    """In words that say what to install."""
    return click.ClickException(f"a checkpoint needs the package {error.name!r}: pip install 'onnxlm[export]'")


def _key(source: Path) -> str:
    """Of the files as they lie: names, sizes and times."""
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    told = [(str(path.resolve()), (status := path.stat()).st_size, status.st_mtime_ns) for path in files]
    return sha256(repr(told).encode()).hexdigest()[:12]


def _is_whole(target: Path) -> bool:
    try:
        open_bundle(target)
    except OnnxlmError:
        return False
    return True


def _remove_others(work: Path) -> None:
    """Float bundles of other checkpoints, or of this one before it was changed."""
    for folder in work.glob(f"{_FLOATS}*"):
        shutil.rmtree(folder, ignore_errors=True)
