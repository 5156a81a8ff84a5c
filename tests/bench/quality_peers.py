"""Other quantizers of ONNX Runtime, for `quality.py`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

PEERS: dict[str, Callable[[Path, Path], tuple[Any, int]]] = {}
