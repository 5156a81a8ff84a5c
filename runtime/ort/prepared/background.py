"""Weights are packed for the next start while this one answers: by a process of its own, at the lowest priority."""

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from ...bundle.bundle import Bundle, open_bundle
from ...errors import OnnxlmError
from ...host.memory import available_memory
from .weights import find, folders_of, make, remove_outdated

OFF = "ONNXLM_NO_PREPARE"  # set to anything: nothing is packed in the background
WORTH_IT = 32 << 20  # bytes of weights; smaller bundles are packed in less time than it takes to look for them
_DELAY = 2.0  # seconds that the first answer has to itself
_COPIES = 3  # of the weights that may be in memory while they are packed
_log = logging.getLogger("onnxlm.prepared")


def prepare_later(bundle: Bundle, *, least: int = WORTH_IT, delay: float = _DELAY) -> threading.Thread | None:
    """Have a bundle's weights packed into the cache by another process; None where that cannot be or is not worth it.

    Args:
        bundle: one for which nothing is prepared.
        least: bytes of weights below which it is not done.
        delay: seconds until it begins.

    Returns:
        A daemon thread that ends with that process, which goes on if this one ends first.
    """
    weights = sum(entry.size for name, entry in bundle.manifest.files.items() if name.endswith(".bin"))
    target = folders_of(bundle)[1]
    if bundle.manifest.target.provider != "cpu" or weights < least or os.environ.get(OFF) or not _can_write(target):
        return None
    if not Path(sys.executable or "").name.startswith("python") or available_memory() < _COPIES * weights:
        return None
    _log.info("%s: packing weights for this processor in the background; off with %s=1", bundle.folder, OFF)
    code = f"from {__name__} import main; main({str(bundle.folder.resolve())!r}, {delay!r})"
    worker = threading.Thread(target=_run, args=(code,), name="onnxlm-prepare", daemon=True)
    worker.start()
    return worker


def main(folder: str, delay: float) -> None:
    """What the other process does."""
    if hasattr(os, "nice"):
        os.nice(19)
    time.sleep(delay)
    bundle = open_bundle(folder)
    try:
        if find(bundle) is None:
            make(bundle)
            remove_outdated(bundle)
    except OnnxlmError as error:
        sys.exit(str(error))


def _run(code: str) -> None:
    package = Path(__file__).parents[2]  # the same code again, however this process found it
    done = subprocess.run(  # noqa: S603  # our own words
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(package)!r}); {code}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        start_new_session=True,
    )
    if done.returncode:
        _log.info("packing weights in the background ended without a result: %s", done.stderr.strip()[-300:])


def _can_write(target: Path) -> bool:
    existing = next((parent for parent in target.absolute().parents if parent.exists()), None)
    return existing is not None and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
