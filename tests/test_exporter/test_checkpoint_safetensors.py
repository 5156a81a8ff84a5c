"""A Hugging Face folder: dtypes, shards, and everything that can be wrong with them."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from exporter.checkpoint import open_checkpoint
from exporter.checkpoint.safetensors.file import read_safetensors
from runtime.errors import CheckpointError, UnsupportedError

VALUES = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)


def write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), begin: int = 0, end: int = 8) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def shard(folder: Path, *names: str) -> dict[str, str]:
    """Split model.safetensors into model-0 (the named tensors) and model-1 (the rest), with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"model-{int(name not in names)}.safetensors" for name in tensors}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return files


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_stored_types_read_as_float32(tmp_path, dtype):
    save_file({"w": VALUES.astype(dtype), "scalar": np.array(2, dtype)}, tmp_path / "x.safetensors")
    tensors = read_safetensors(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(tensors["w"].read(), VALUES.astype(dtype).astype(np.float32))
    assert tensors["scalar"].read() == 2


def test_integers_are_no_weights(tmp_path):
    save_file({"w": np.ones(3, np.int32)}, tmp_path / "x.safetensors")
    with pytest.raises(UnsupportedError, match=r"x.safetensors: w: stored as I32; readable as weights are F64, F32"):
        read_safetensors(tmp_path / "x.safetensors")["w"].read()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_numbers_are_found(tmp_path, bad):
    save_file({"w": np.array([1, bad], np.float32)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"x.safetensors: w: holds (NaN|infinite) values"):
        read_safetensors(tmp_path / "x.safetensors")["w"].read()


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"w": entry()}, b"\0" * 7, "end at byte .*, the file has"),
        ({"w": entry()}, b"\0" * 9, "end at byte .*, the file has"),
        ({"w": entry(end=4)}, b"\0" * 4, "4 bytes for F32"),
        ({"w": entry(shape=(1 << 40, 1 << 40))}, b"\0" * 8, "8 bytes for F32"),
        ({"w": entry(shape=(-1, -2))}, b"\0" * 8, "integers of at least 0"),
        ({"w": entry(begin=-8, end=0)}, b"\0" * 8, "integers of at least 0"),
        ({"w": entry(begin=4, end=12)}, b"\0" * 12, "does not start where"),
        ({"v": entry(), "w": entry()}, b"\0" * 8, "does not start where"),
        ({"w": entry(dtype="F7")}, b"\0" * 8, "dtype 'F7'; known are"),
        ({"w": {"dtype": "F32"}}, b"", "must give dtype, shape and two data_offsets"),
        ({"w": 3}, b"", "must give dtype"),
        ([1], b"", "not a JSON object"),
        (b"{", b"", "not JSON"),
        (b"\xff\xfe", b"", "not JSON"),
        (b'{"w":1,"w":2}', b"", "appears twice"),
        (b"[" * 100_000, b"", "nested too deeply"),
    ],
)
def test_damaged_headers_are_named(tmp_path, header, data, message):
    with pytest.raises(CheckpointError, match=message):
        read_safetensors(write(tmp_path / "x.safetensors", header, data))


@pytest.mark.parametrize("content", [b"", b"\1\2", b"\xff" * 8 + b"{}", struct.pack("<Q", 1 << 40) + b"{}"])
def test_absurd_header_sizes_are_refused(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"too few for a safetensors file|states a header of \d+ bytes"):
        read_safetensors(tmp_path / "x.safetensors")


def test_shards_read_as_one(make_checkpoint):
    folder = make_checkpoint(seed=1)
    whole = {name: source.read() for name, source in open_checkpoint(folder).tensors.items()}
    shard(folder, "model.norm.weight")
    checkpoint = open_checkpoint(folder)
    assert {name: source.read().tobytes() for name, source in checkpoint.tensors.items()} == {
        name: values.tobytes() for name, values in whole.items()
    }
    assert [path.name for path in checkpoint.files] == ["model-0.safetensors", "model-1.safetensors"]


def test_hash_of_shards_does_not_depend_on_their_names(make_checkpoint):
    folder = make_checkpoint(seed=1)
    single = open_checkpoint(folder).sha256
    shard(folder, "model.norm.weight")
    sharded = open_checkpoint(folder).sha256
    assert single != sharded
    assert len(single) == len(sharded) == 64


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model-1.safetensors").unlink(), "model-1.safetensors: this shard is named by"),
        (lambda folder: save_file({}, folder / "model-0.safetensors"), "'model.norm.weight' should be in model-0"),
        (
            lambda folder: save_file(load_file(folder / "model-1.safetensors"), folder / "model-0.safetensors"),
            "is in model-0.safetensors and in model-1.safetensors",
        ),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: cannot be read as JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "must hold a JSON object"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json: cannot be read as a tokenizer"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("{}"), "weight_map must map"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "../x"}}'),
            r"'\.\./x' is not a file of this folder",
        ),
    ],
)
def test_broken_folders_are_named(make_checkpoint, damage, message):
    folder = make_checkpoint(seed=1)
    shard(folder, "model.norm.weight")
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_sources_that_are_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(tmp_path / "no" / "where")
    with pytest.raises(CheckpointError, match=r"no config.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="The file is empty"):
        open_checkpoint(tmp_path / "model.safetensors")


def test_a_folder_around_one_gguf_opens_it(make_gguf):
    _, path = make_gguf()
    assert open_checkpoint(path.parent).format == "gguf"


def test_licence_is_read_from_the_model_card(make_checkpoint):
    folder = make_checkpoint(seed=1)
    assert open_checkpoint(folder).licence is None
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Model\nlicense: other\n")
    assert open_checkpoint(folder).licence == "apache-2.0"
