"""A bundle on disk: opened with every check, written all at once or not at all."""

import glob
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import BundleError, IntegrityError, ManifestError
from .manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, FileEntry, Manifest, dump_manifest, parse_manifest

_CHUNK = 1 << 22
_UNFINISHED = ".new."  # follows the name of a bundle that is being written
_ours: set[Path] = set()  # unfinished folders of this process


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an error of the system the path that it is about, where it says none, as when a disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its folder and its manifest, whose files exist with the recorded sizes."""

    folder: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """Where the bundle's file `name` lies; IntegrityError if the manifest does not list it."""
        if name not in self.manifest.files:
            raise IntegrityError(f"{self.folder}: {name} is not a file of this bundle ({MANIFEST_NAME}: files).")
        return self.folder / name

    def has(self, name: str) -> bool:
        """Whether the manifest lists a file of that name."""
        return name in self.manifest.files


def open_bundle(folder: str | Path, *, verify: bool = False, progress: Callable[[int], None] | None = None) -> Bundle:
    """Open a bundle, checking the manifest and every file's size; with `verify` every file's hash as well.

    `progress` is told the bytes of each piece that was hashed.

    Raises:
        BundleError: the folder is not there.
        ManifestError, FormatVersionError: manifest.json cannot be used.
        IntegrityError: a file is missing, truncated, altered, or a link out of the folder.
    """
    folder = Path(folder)
    bundle = Bundle(folder, parse_manifest(_read_manifest(folder)))
    for graph in bundle.manifest.graphs.present.values():
        bundle.path(graph.file)
    for name, entry in bundle.manifest.files.items():
        _check_file(folder, name, entry)
        if verify:
            _check_hash(folder, name, entry, progress)
    return bundle


@contextmanager
def new_bundle(target: str | Path, *, overwrite: bool = False, marker: str = MANIFEST_NAME) -> Iterator[Path]:
    """Yield a temporary folder beside `target` that becomes `target` when the block succeeds, and vanishes when not.
    What a killed process left of an earlier attempt is removed first.
    An existing target is refused, or with `overwrite` replaced if it is a bundle (or empty): never another folder.
    A folder of another kind than bundles is known by its file `marker`.
    """
    target = Path(target).absolute()
    _require_replaceable(target, overwrite, marker)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    _require_alone(target)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}{_UNFINISHED}{os.getpid()}.", dir=target.parent))
    handle = _lock(temporary)
    _ours.add(temporary)
    try:
        temporary.chmod(0o755)
        yield temporary
        _sync(temporary)
        _swap(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _ours.discard(temporary)
        if handle is not None:
            os.close(handle)


def remove_unfinished() -> None:
    """Remove what this process was writing: for one that ends without unwinding."""
    for folder in list(_ours):
        shutil.rmtree(folder, ignore_errors=True)


def write_manifest(
    folder: Path,
    manifest: Manifest,
    progress: Callable[[int], None] | None = None,
    known: Mapping[str, str] | None = None,
) -> Manifest:
    """Hash every file in `folder`, write manifest.json last, and return the manifest with its `files` filled in.

    `known` has the hashes of files that were hashed already.
    """
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    hashes = {n: (known or {}).get(n) or sha256_of(folder / n, progress) for n in names if n != MANIFEST_NAME}
    files = {n: FileEntry((folder / n).stat().st_size, sha256) for n, sha256 in hashes.items()}
    complete = replace(manifest, files=files)
    (folder / MANIFEST_NAME).write_text(dump_manifest(complete), encoding="utf-8")
    return complete


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file as hexadecimal digits, read in chunks; `progress` is told the bytes of each."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            if progress:
                progress(len(chunk))
    return digest.hexdigest()


def _read_manifest(folder: Path) -> str:
    try:
        if _is_checkpoint(folder):
            raise BundleError(
                f"{folder} is a checkpoint, not a bundle. `onnxlm export {folder} -o NEW` makes one of it; "
                "`onnxlm run` and `onnxlm serve` do that on the way."
            )
        if not folder.is_dir():
            what = "this is a file" if folder.exists() else "no such folder"
            raise BundleError(f"{folder}: {what}. A bundle is a folder that `onnxlm export` wrote.")
        path = _inside(folder, MANIFEST_NAME)
        if not path.is_file():
            raise ManifestError(f"{folder}: no {MANIFEST_NAME}; this is not a bundle, or it was only half copied.")
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ManifestError(f"{path}: larger than {MAX_MANIFEST_BYTES >> 20} MiB; this is not an onnxlm manifest.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{folder}: {MANIFEST_NAME} is not UTF-8 text ({error}). Copy the bundle again.") from error
    except (OSError, ValueError) as error:  # no permission; a NUL in the name
        raise BundleError(f"{folder}: {MANIFEST_NAME} cannot be read ({error}).") from error


def _is_checkpoint(path: Path) -> bool:
    if path.is_file():
        return path.suffix in (".gguf", ".safetensors")
    return (path / "config.json").is_file() and not (path / MANIFEST_NAME).exists()


def _inside(folder: Path, name: str) -> Path:
    """The real path of a file of the bundle; IntegrityError when it is a link that leaves the folder."""
    try:
        real = (folder / name).resolve()
    except RuntimeError as error:  # Python 3.11 and 3.12 raise this for a loop of links
        raise IntegrityError(f"{folder}: {name} is a link to itself.") from error
    if not real.is_relative_to(folder.resolve()):
        raise IntegrityError(
            f"{folder}: {name} is a link to {real}, outside the bundle, and is not followed. "
            f"Copy the bundle with its files in place (cp -rL)."
        )
    return real


def _check_file(folder: Path, name: str, entry: FileEntry) -> None:
    try:
        real = _inside(folder, name)
        status = real.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IntegrityError(f"{folder}: {name} is missing; the bundle was only half copied. Copy it again.") from error
    except OSError as error:
        raise IntegrityError(f"{folder}: {name} cannot be read ({error.strerror}).") from error
    if not stat.S_ISREG(status.st_mode):
        raise IntegrityError(f"{folder}: {name} is not a regular file.")
    if status.st_size != entry.size:
        raise IntegrityError(
            f"{folder}: {name} has {status.st_size} bytes instead of {entry.size}. Copy the bundle again."
        )


def _check_hash(folder: Path, name: str, entry: FileEntry, progress: Callable[[int], None] | None) -> None:
    try:
        actual = sha256_of(folder / name, progress)
    except OSError as error:
        raise IntegrityError(f"{folder}: {name} cannot be read ({error.strerror}).") from error
    if actual != entry.sha256:
        raise IntegrityError(
            f"{folder}: {name} was altered: its SHA-256 is not the recorded one. Copy the bundle again."
        )


def _require_replaceable(target: Path, overwrite: bool, marker: str) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise BundleError(f"{target} exists and is not a folder; choose another output.")
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise BundleError(f"{target} exists. Choose another output, or pass --overwrite to replace it.")
    if not (target / marker).is_file():
        raise BundleError(f"{target} holds no {marker}, so onnxlm did not write it, and does not overwrite it.")


def _remove_abandoned(target: Path) -> None:
    """Remove unfinished folders of `target` whose process is gone: it holds a lock as long as it lives."""
    for path in target.parent.glob(f".{glob.escape(target.name)}{_UNFINISHED}*"):
        handle = _lock(path)
        if handle is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)


@contextmanager
def alone(target: Path, unfinished: Path) -> Iterator[None]:
    """Nobody else writes `target` meanwhile: the lock is on the file that it grows in, where the system has locks.

    Raises:
        BundleError: another process writes it.
    """
    unfinished.touch()
    handle = _lock(unfinished)
    if handle is None and sys.platform != "win32":
        raise BundleError(f"{target}: another process is writing it. Wait for it, stop it, or choose another output.")
    try:
        yield
    finally:
        unfinished.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


def _require_alone(target: Path) -> None:
    """What `_remove_abandoned` left belongs to a process that is at work, where the system has locks."""
    if sys.platform == "win32":
        return
    for path in target.parent.glob(f".{glob.escape(target.name)}{_UNFINISHED}*"):
        process = path.name.removeprefix(f".{target.name}{_UNFINISHED}").partition(".")[0]
        who = f"process {process}" if process.isdecimal() else "another process"
        raise BundleError(f"{target}: {who} is writing it. Wait for it, stop it, or choose another output.")


def _lock(folder: Path) -> int | None:
    """A handle that keeps a folder or a file locked; None if another process does, or the system cannot."""
    try:
        import fcntl  # not on Windows

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _swap(temporary: Path, target: Path) -> None:
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
        target.rename(old / "bundle")
        temporary.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(target)
    _sync_folder(target.parent)


def _sync(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("r+b") as file:  # Windows syncs only what is open for writing
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows opens no folders, and its renames are durable
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
