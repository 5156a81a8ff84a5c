"""The files of a bundle beside its weights, and what happens when the disk is full."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.bundle.bundle import Bundle
from runtime.errors import QuantizationError


def copy_other_files(bundle: Bundle, folder: Path) -> None:
    """Copy what a new bundle takes over unchanged: every file of the old one that is not there yet."""
    for name in bundle.manifest.files:
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.folder / name, folder / name)


@contextmanager
def translated() -> Iterator[None]:
    """A full disk and the like, in our words."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise QuantizationError(
            f"{where}cannot be written ({error.strerror or error}); nothing was written."
        ) from error
