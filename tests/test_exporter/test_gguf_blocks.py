"""Every block format of the gguf package, to the bit of its own dequantization."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import _type_traits  # the package's list of what it can dequantize

from exporter.checkpoint.gguf.blocks import block_format
from exporter.checkpoint.gguf.exact import EXACT, read_packed
from exporter.checkpoint.stored import FileRange, read_float32
from runtime.errors import CheckpointError, UnsupportedError

KINDS = [*sorted(kind.name for kind in _type_traits), "F32", "F16"]


def random_blocks(kind: str, blocks: int) -> np.ndarray:
    """Random bytes whose float16 scales are finite; NaN scales have a test of their own."""
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = np.random.default_rng(len(kind)).integers(0, 256, (8 * blocks, size), np.uint8)
    if kind == "TQ2_0":
        data[:, :64] &= ~((data[:, :64] & 0x55) << 1)  # three values, not four
    with np.errstate(all="ignore"):
        values = gguf.dequantize(data.ravel(), gguf.GGMLQuantizationType[kind]).reshape(8 * blocks, -1)
    return data[np.isfinite(values).all(1)][:blocks]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_gguf_package(tmp_path: Path, kind: str):
    data = random_blocks(kind, 500)
    (tmp_path / "x.bin").write_bytes(b"\0" * 7 + data.tobytes())
    form = block_format(kind, "here")
    shape = (len(data) // 2, 2 * form.block)
    values = read_float32(FileRange(tmp_path / "x.bin", 7, data.nbytes), shape, form, "here")
    expected = gguf.dequantize(data.ravel(), gguf.GGMLQuantizationType[kind])
    assert (values.shape, values.dtype) == (shape, np.float32)
    assert values.tobytes() == expected.tobytes()


def test_tensors_larger_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("exporter.checkpoint.stored.CHUNK_BYTES", 34 * 3)
    data = random_blocks("Q8_0", 100)
    (tmp_path / "x.bin").write_bytes(data.tobytes())
    values = read_float32(FileRange(tmp_path / "x.bin", 0, data.nbytes), (len(data), 32), block_format("Q8_0", ""), "")
    assert values.tobytes() == gguf.dequantize(data.ravel(), gguf.GGMLQuantizationType.Q8_0).tobytes()


@pytest.mark.parametrize(("scale", "kind"), [(b"\x00\x7e", "NaN"), (b"\x00\x7c", "infinite")])
def test_scales_that_are_not_numbers_are_named(tmp_path: Path, scale: bytes, kind: str):
    (tmp_path / "x.bin").write_bytes(scale + b"\x01" * 32)
    with pytest.raises(CheckpointError, match=rf"w\.gguf: head: holds {kind} values"):
        read_float32(FileRange(tmp_path / "x.bin", 0, 34), (1, 32), block_format("Q8_0", ""), "w.gguf: head")


def test_a_file_that_shrank_is_an_error(tmp_path: Path):
    (tmp_path / "x.bin").write_bytes(b"\0" * 20)
    with pytest.raises(CheckpointError, match="ended while it was read"):
        read_float32(FileRange(tmp_path / "x.bin", 0, 34), (1, 32), block_format("Q8_0", ""), "here")


def test_types_that_are_no_weights_are_refused():
    with pytest.raises(UnsupportedError, match="here: stored as I32"):
        block_format("I32", "here")


@pytest.mark.parametrize("kind", EXACT)
def test_exact_formats_are_the_same_numbers_as_codes(tmp_path: Path, kind: str):
    data = random_blocks(kind, 400)
    (tmp_path / "x.bin").write_bytes(data.tobytes())
    source, form = FileRange(tmp_path / "x.bin", 0, data.nbytes), block_format(kind, "")
    shape = (len(data) // 4, 4 * form.block)
    packed = read_packed(source, shape, kind, "")
    assert packed is not None
    assert packed.codes.shape == shape
    assert packed.scales.shape == (shape[0], shape[1] // packed.group_size)
    assert packed.dequantize().tobytes() == read_float32(source, shape, form, "").tobytes()


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "F32", "IQ2_S"])
def test_other_formats_have_no_codes(tmp_path: Path, kind: str):
    assert read_packed(FileRange(tmp_path / "x.bin", 0, 0), (1, 256), kind, "") is None
