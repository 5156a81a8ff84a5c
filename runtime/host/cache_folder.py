"""Where files lie that onnxlm makes for itself and can make again: bundles of checkpoints, prepared weights."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$ONNXLM_CACHE, else $XDG_CACHE_HOME/onnxlm, else ~/.cache/onnxlm; the folder need not exist."""
    if own := os.environ.get("ONNXLM_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "onnxlm"
