"""Which bundle of the cache was made from a checkpoint: found again without importing what makes bundles.

CACHE/.made/KEY      holds the name of a bundle's folder; KEY is a hash of this version, and of a checkpoint's files by
                     name, size, times and number on disk
"""

import contextlib
import hashlib
from importlib.metadata import version
from pathlib import Path

from .cache_folder import cache_folder

_FOLDER = ".made"
_MANIFEST = "manifest.json"


def recall(source: str | Path) -> Path | None:
    """The bundle that `remember` was told of, if the checkpoint's files are as they were and the bundle is there."""
    try:
        name = _record(Path(source)).read_text(encoding="utf-8")
        folder = cache_folder() / name
        return folder if folder.name == name and (folder / _MANIFEST).is_file() else None
    except (OSError, ValueError):  # no such checkpoint or record, or no text: the maker of bundles has words for it
        return None


def remember(source: str | Path, bundle: Path) -> None:
    """Note that this folder of the cache is a checkpoint's bundle. Where nothing can be written, nothing is noted."""
    with contextlib.suppress(OSError):
        record = _record(Path(source))
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(bundle.name, encoding="utf-8")


def forget(bundle: Path) -> None:
    """Remove what was noted of a bundle."""
    for record in (cache_folder() / _FOLDER).glob("*"):
        if record.read_text(encoding="utf-8", errors="replace") == bundle.name:
            record.unlink(missing_ok=True)


def _record(source: Path) -> Path:
    path = source.resolve(strict=True)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    digest = hashlib.sha256(version("onnxlm").encode())
    for file in files:
        status = file.stat()
        known = (file, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        digest.update("\0".join(map(str, known)).encode("utf-8", "surrogateescape"))
    return cache_folder() / _FOLDER / digest.hexdigest()
