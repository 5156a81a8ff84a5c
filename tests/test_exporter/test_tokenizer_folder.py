"""The tokenizer files that a Hugging Face folder brings into the bundle."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from exporter.checkpoint import open_checkpoint
from exporter.tokenizer.folder import folder_tokenizer_files
from runtime.bundle.bundle import open_bundle
from runtime.errors import CheckpointError, UnsupportedError


def set_config(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def folder(make_checkpoint) -> Path:
    return make_checkpoint(seed=1)


def test_files_are_taken_as_they_are(folder):
    files = open_checkpoint(folder).tokenizer_files
    assert files["tokenizer.json"] == (folder / "tokenizer.json").read_bytes()
    assert json.loads(files["generation_config.json"]) == {"bos_token_id": 1, "eos_token_id": [2, 0]}
    assert files["chat_template.jinja"].startswith(b"{% for message in messages %}")


def test_only_the_keys_that_are_read_are_kept(folder):
    set_config(folder, bos_token={"content": "<b>", "lstrip": False}, add_bos_token=True, auto_map={"x": "y.py"})
    kept = json.loads(folder_tokenizer_files(folder)[0]["tokenizer_config.json"])
    assert kept == {"bos_token": "<b>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>", "add_bos_token": True}


def test_a_template_file_wins(folder):
    (folder / "chat_template.jinja").write_text("from the file")
    assert folder_tokenizer_files(folder)[0]["chat_template.jinja"] == b"from the file"


def test_named_templates(folder):
    set_config(folder, chat_template=[{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}])
    files = folder_tokenizer_files(folder)[0]
    assert files["chat_template.jinja"] == b"d"
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == [{"name": "tool_use", "template": "t"}]


def test_an_end_of_the_tokenizer_alone_counts(make_checkpoint, make_bundle):
    folder = make_checkpoint(eos_token_id=None, bos_token_id=None)
    (folder / "generation_config.json").unlink()
    tokens = open_bundle(make_bundle(folder)).manifest.tokens
    assert (tokens.eos, tokens.pad, tokens.bos) == ((2,), 3, 1)


@pytest.mark.parametrize(("kind", "pieces"), [("GPT2TokenizerFast", 2), ("Qwen2Tokenizer", 5)])
def test_vocab_and_merges_are_enough_for_known_classes(folder, kind, pieces):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))
    (folder / "tokenizer.json").unlink()
    set_config(folder, tokenizer_class=kind)
    tokenizer = Tokenizer.from_buffer(folder_tokenizer_files(folder)[0]["tokenizer.json"])
    assert len(tokenizer.pre_tokenizer.pre_tokenize_str("a 123")) == pieces
    assert tokenizer.encode("the<|im_end|>").tokens[-1] == "<|im_end|>"


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (["tokenizer.model"], r"no tokenizer.json, only tokenizer.model. Make one"),
        ([], "no tokenizer.json and no other tokenizer file"),
        (["vocab.json", "merges.txt"], "can be read for GPT2Tokenizer, Qwen2Tokenizer; tokenizer_class is not given"),
    ],
)
def test_other_tokenizers_are_refused_with_advice(folder, others, message):
    (folder / "tokenizer.json").unlink()
    for name in others:
        (folder / name).write_text("")
    with pytest.raises(UnsupportedError, match=message):
        folder_tokenizer_files(folder)[0]


def test_broken_files_are_named(folder):
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json: cannot be read as JSON"):
        folder_tokenizer_files(folder)[0]
