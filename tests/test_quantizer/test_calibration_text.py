"""Text for calibration: files of three kinds, the model's own, and everything that can be wrong with them."""

import json

import numpy as np
import pytest

from quantizer.calibration.data import read_chunks, split, too_little, write_own_text
from runtime.bundle.bundle import open_bundle
from runtime.errors import QuantizationError


@pytest.fixture
def bundle(tiny_bundle):
    return open_bundle(tiny_bundle)


def test_text_files(bundle, tmp_path):
    (tmp_path / "a.txt").write_text("the quick brown fox jumps over the lazy dog " * 40)
    chunks = read_chunks(tmp_path / "a.txt", bundle, tokens=64, length=16)
    assert chunks.shape == (4, 16)
    assert chunks.dtype == np.int64


def test_conversations_use_the_chat_template(bundle, tmp_path):
    lines = [{"text": "hello there, all of you"}, {"messages": [{"role": "user", "content": "hi"}]}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "b.jsonl").write_text(json.dumps(lines[0]))
    both, first = (read_chunks(tmp_path / f"{n}.jsonl", bundle, 4096, 4096).size for n in "ab")
    assert both > first + 2  # the second line is more than "hi"


def test_tokens(bundle, tmp_path):
    np.save(tmp_path / "t.npy", np.arange(40).reshape(2, 20))
    assert read_chunks(tmp_path / "t.npy", bundle, 1000, 10).tolist()[0] == list(range(10))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "no text in it"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read"),
        ("a.jsonl", b"{", "line 1 is not JSON"),
        ("a.jsonl", b'{"prompt": "x"}', 'neither a "text" nor "messages"'),
        ("a.npy", b"junk", "cannot be read"),
    ],
)
def test_bad_files(bundle, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(QuantizationError, match=message):
        read_chunks(tmp_path / name, bundle, 1000)


def test_missing_file(bundle, tmp_path):
    with pytest.raises(QuantizationError, match="cannot be read"):
        read_chunks(tmp_path / "none.txt", bundle, 1000)


def test_another_models_tokens_are_refused(bundle, tmp_path):
    np.save(tmp_path / "t.npy", np.array([5, 40_000, 7]))
    with pytest.raises(QuantizationError, match="another model's tokenizer"):
        read_chunks(tmp_path / "t.npy", bundle, 1000)


def test_tiny_text_is_warned_about():
    assert "only 20 tokens" in str(too_little(np.zeros((2, 10), np.int64)))
    assert too_little(np.zeros((8, 512), np.int64)) is None


def test_own_text_is_sampled_and_repeatable(tiny_bundle):
    chunks = write_own_text(tiny_bundle, tokens=60, seed=1, length=20)
    assert chunks.shape == (3, 20)
    assert len(set(chunks[:, 0].tolist())) == 3
    assert np.array_equal(chunks, write_own_text(tiny_bundle, tokens=60, seed=1, length=20))
    assert not np.array_equal(chunks, write_own_text(tiny_bundle, tokens=60, seed=2, length=20))


def test_some_is_held_out():
    chunks = np.arange(120).reshape(12, 10)
    text = split("x", chunks)
    assert (len(text.chunks), len(text.held_out)) == (8, 4)
    assert not set(text.held_out.ravel()) & set(text.chunks.ravel())
    half = split("x", chunks[:1])
    assert half.chunks.tolist() == [[0, 1, 2, 3, 4]]
