"""The header of a GGUF file is believed only as far as the file is long."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from exporter.checkpoint.gguf.file import read_gguf
from runtime.errors import CheckpointError, UnsupportedError


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(*, tensors: int = 0, entries: int = 0, body: bytes = b"", version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries) + body


def tensor(name: str = "w", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def read(tmp_path: Path, content: bytes):
    (tmp_path / "x.gguf").write_bytes(content)
    return read_gguf(tmp_path / "x.gguf")


def plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return float(np.float32(value)) if isinstance(value, float) else value


def test_agrees_with_the_gguf_package(make_gguf):
    _, path = make_gguf("Q8_0", metadata={"a.flag": True, "a.list": [1, 2, 3], "a.words": ["x", "ÿ"], "a.number": 0.1})
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    values = {key: plain(f.contents()) for key, f in theirs.fields.items() if not key.startswith("GGUF.")}
    assert {key: plain(value) for key, value in ours.metadata.items()} == values
    places = {t.name: (tuple(t.shape[::-1]), t.tensor_type.name, t.data_offset, t.n_bytes) for t in theirs.tensors}
    found = {t.name: (t.shape, t.type, t.range.offset, t.range.size) for t in ours.tensors.values()}
    assert found == places


def test_float32_metadata_is_the_number_its_author_wrote(tmp_path):
    body = text("eps") + struct.pack("<If", 6, 1e-5)
    assert read(tmp_path, header(entries=1, body=body)).metadata == {"eps": 1e-5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1", "not a GGUF file"),
        (header(tensors=1 << 60), "1152921504606846976 tensors do not fit"),
        (header(entries=1 << 60), "metadata entries do not fit"),
        (header(entries=1, body=struct.pack("<Q", 1 << 62) + b"x" * 20), "wants 4611686018427387904 bytes"),
        (header(entries=1, body=text("k") + struct.pack("<IIQ", 9, 6, 1 << 61)), "numbers in 'k' do not fit"),
        (header(entries=1, body=text("k") + struct.pack("<IIQ", 9, 8, 1 << 61)), "strings in 'k' do not fit"),
        (header(entries=1, body=text("k") + struct.pack("<II", 9, 9)), "array of the unknown type 9"),
        (header(entries=1, body=text("k") + struct.pack("<II", 77, 0)), "unknown type 77"),
        (header(entries=2, body=2 * (text("k") + struct.pack("<IB", 0, 1))), "'k' appears twice"),
        (header(entries=1, body=struct.pack("<Q", 2) + b"\xff\xfe" + b"x" * 20), "not UTF-8"),
        (header(tensors=1, body=tensor(dims=(1,) * 5)), "has 5 dimensions"),
        (header(tensors=1, body=tensor(dims=(0,))), "not made of F32 blocks"),
        (header(tensors=1, body=tensor(dims=(33,), kind=8)), "not made of Q8_0 blocks of 32"),
        (header(tensors=1, body=tensor(dims=(1 << 40, 1 << 40))), "ends at byte"),
        (header(tensors=1, body=tensor(offset=1 << 63)), "ends at byte"),
        (header(tensors=2, body=2 * tensor()) + b"\0" * 300, "'w' appears twice"),
        (
            header(entries=1, body=text("general.alignment") + struct.pack("<II", 4, 3)),
            "general.alignment is 3, not a power",
        ),
    ],
)
def test_damage_is_named(tmp_path, content, message):
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(version=1), "version 1; supported"),
        (header(version=3 << 24), "big-endian"),
        (header(tensors=1, body=tensor(kind=999)), "'w' has the unknown type 999"),
    ],
)
def test_unsupported_is_named(tmp_path, content, message):
    with pytest.raises(UnsupportedError, match=message):
        read(tmp_path, content)
