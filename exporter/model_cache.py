"""Bundles made on the way to an answer: a checkpoint is exported and packed once, and found again after that.

CACHE/               $ONNXLM_CACHE, else $XDG_CACHE_HOME/onnxlm, else ~/.cache/onnxlm
  NAME-KEY/          an ordinary bundle; KEY is a hash of its source and its options
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.bundle.bundle import open_bundle
from runtime.bundle.manifest import FORMAT_VERSION
from runtime.errors import BundleError, CheckpointError
from runtime.host.cache_folder import cache_folder
from runtime.host.made_bundles import forget

from .options import ExportOptions

Progress = Callable[[str, int, int], None]
HUB_PREFIX = "hf:"
_SAMPLE = 1 << 16  # bytes at both ends of a file that its key is made of, beside its size and its time
_KEY_DIGITS = 12
# How checkpoints are packed: in one pass over the weights, in little memory. Codes that a file has already are kept.
_OPTIONS = ExportOptions(quantize="int4", verify="self-consistency")


@dataclass(frozen=True)
class CachedModel:
    """A bundle of the cache: its folder's name, the folder, its size in bytes, and its source."""

    name: str
    folder: Path
    size: int
    source: str


def cached_bundle(
    source: str | Path,
    progress: Progress | None = None,
    announce: Callable[[str], None] | None = None,
    *,
    refresh: bool = False,
) -> Path:
    """The bundle of a checkpoint, from the cache or made now.

    Args:
        source: a GGUF file, a Hugging Face folder, or a hub id: "hf:organisation/name", with "/file.gguf" and
            "@revision" behind it where wanted.
        progress: called with (phase, done, total) while the bundle is made.
        announce: is told, in words, that it is being made.
        refresh: ask the hub for a newer commit instead of taking what was fetched before.

    Raises:
        CheckpointError, UnsupportedError: the source cannot be exported.
    """
    from .export import export

    path, name = _fetched(str(source), refresh=refresh) if str(source).startswith(HUB_PREFIX) else _local(Path(source))
    folder = cache_folder() / f"{name}-{_key(path)}"
    with _only_one(folder, announce):
        if not folder.exists():
            if announce:
                announce(f"{source}: making {folder}; the next start finds it there")
            export(path, folder, _OPTIONS, progress)
    return folder


def list_cached() -> list[CachedModel]:
    """What the cache holds, by name; what is not a whole bundle is left out."""
    found = []
    for folder in sorted(cache_folder().glob("*-*")):
        with contextlib.suppress(BundleError):
            manifest = open_bundle(folder).manifest
            size = sum(entry.size for entry in manifest.files.values())
            found.append(CachedModel(folder.name, folder, size, manifest.source.name))
    return found


def list_packed() -> list[CachedModel]:
    """The weights that were packed for processors, under their keys as names."""
    from runtime.ort.prepared.weights import list_prepared

    return [
        CachedModel(f"prepared/{one.folder.name}", one.folder, one.size, f"{one.about.source} for {one.about.target}")
        for one in list_prepared()
    ]


def remove_cached(name: str) -> list[CachedModel]:
    """Remove what has that name, of bundles whole or without the hash; returns what was removed.

    Raises:
        BundleError: nothing has that name; lists what there is.
    """
    models = [*list_cached(), *list_packed()]
    chosen = [model for model in models if name in (model.name, model.name.rpartition("-")[0])]
    if not chosen:
        there = ", ".join(model.name for model in models) or "nothing"
        raise BundleError(f"{name!r} is not in the cache {cache_folder()}, which holds: {there}.")
    for model in chosen:
        shutil.rmtree(model.folder)
        forget(model.folder)
        _lock_file(model.folder).unlink(missing_ok=True)
    return chosen


def _local(path: Path) -> tuple[Path, str]:
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such file or folder. Give a bundle, a .gguf file, a model folder with config.json, or "
            f"{HUB_PREFIX}organisation/name for a model of the hub."
        )
    resolved = path.resolve()
    return resolved, resolved.stem if resolved.is_file() else resolved.name


def _fetched(source: str, *, refresh: bool) -> tuple[Path, str]:
    from .checkpoint.hub import fetch, is_hub_id

    hub_id, _, revision = source.removeprefix(HUB_PREFIX).partition("@")
    if not is_hub_id(hub_id):
        raise CheckpointError(f"{source}: not a hub id, which reads {HUB_PREFIX}organisation/name.")
    path, _ = fetch(hub_id, revision or None, offline_first=not refresh)
    return path, hub_id.partition("/")[2].replace("/", "-").removesuffix(".gguf")


def _key(path: Path) -> str:
    """A hash of the checkpoint's files, by name, size, time and both ends, and of how bundles are made."""
    from importlib.metadata import version

    digest = hashlib.sha256(f"{FORMAT_VERSION} {version('onnxlm')} {_OPTIONS}".encode())
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and ".git" not in p.parts)
    for file in files:
        status = file.stat()
        digest.update(f"\0{file.relative_to(path.parent)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(_SAMPLE))
            opened.seek(max(0, status.st_size - _SAMPLE))
            digest.update(opened.read(_SAMPLE))
    return digest.hexdigest()[:_KEY_DIGITS]


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


@contextlib.contextmanager
def _only_one(folder: Path, announce: Callable[[str], None] | None) -> Iterator[None]:
    """Let one process at a time make a bundle; others wait, and then find it."""
    if folder.exists():
        yield
        return
    try:
        import fcntl
    except ImportError:  # Windows: two makers would both finish, and the second would be refused by name
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock_file(folder).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if announce:
                announce(f"another process is making {folder}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
