"""Damaged files end in our own errors, quickly and in little memory.

ONNXLM_FUZZ=5000 runs more cases than the default 200 of each format.
"""

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.checkpoint import open_checkpoint
from runtime.errors import CheckpointError

CASES = int(os.environ.get("ONNXLM_FUZZ", "200"))
LIMIT_BYTES = 64 << 20  # the files have 200 KB
EXTREMES = [0, 1, 0x7F, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1]


def damaged(content: bytes, header_bytes: int, rng: random.Random) -> bytes:
    """One to four small faults, nearly all of them in the header."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(header_bytes if rng.random() < 0.9 else len(data))
        kind = rng.choice(["flip", "byte", "extreme", "remove", "repeat", "cut"])
        if kind == "flip":
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            data[at % len(data)] = rng.randrange(256)
        elif kind == "extreme":
            width = rng.choice(["<H", "<I", "<Q"])
            value = struct.pack("<Q", rng.choice(EXTREMES))[: struct.calcsize(width)]
            data[at : at + len(value)] = value
        elif kind == "remove":
            del data[at : at + rng.randint(1, 16)]
        elif kind == "repeat":
            data[at:at] = data[at : at + rng.randint(1, 64)]
        elif len(data) > 1 and rng.random() < 0.3:
            del data[at % len(data) or 1 :]
    return bytes(data)


def open_and_read(path: Path) -> None:
    for source in open_checkpoint(path).tensors.values():
        source.read()


def fuzz(path: Path, source: Path, header_bytes: int) -> int:
    """How many damaged versions of the file were refused."""
    content, refused = path.read_bytes(), 0
    tracemalloc.start()
    try:
        for seed in range(CASES):
            path.write_bytes(damaged(content, header_bytes, random.Random(seed)))
            tracemalloc.reset_peak()
            try:
                open_and_read(source)
            except CheckpointError:
                refused += 1
            assert tracemalloc.get_traced_memory()[1] < LIMIT_BYTES, f"seed {seed}"
    finally:
        tracemalloc.stop()
        path.write_bytes(content)
    return refused


@pytest.mark.timeout(3600)
def test_damaged_gguf_files(make_gguf: Callable[..., tuple[Path, Path]]):
    _, path = make_gguf("Q4_0", num_hidden_layers=1)
    assert fuzz(path, path, path.read_bytes().index(b"blk.0.ffn_up.weight")) > CASES / 3


@pytest.mark.timeout(3600)
def test_damaged_safetensors_files(make_checkpoint: Callable[..., Path]):
    folder = make_checkpoint(seed=1, num_hidden_layers=1)
    path = folder / "model.safetensors"
    (header,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert fuzz(path, folder, 8 + header) > CASES / 3
