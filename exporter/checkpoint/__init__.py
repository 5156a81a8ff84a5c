"""Checkpoints of every supported format, behind one small interface: lazy tensors by Hugging Face name."""

from .checkpoint import Checkpoint, PackedTensor, TensorSource
from .live import open_module
from .opening import open_checkpoint

__all__ = ["Checkpoint", "PackedTensor", "TensorSource", "open_checkpoint", "open_module"]
