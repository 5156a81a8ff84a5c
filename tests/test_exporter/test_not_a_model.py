"""What people give in place of a model is called what it is, with what to do; nothing is left behind."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from exporter.export import ExportOptions, export
from runtime.cli.main import main
from runtime.errors import OnnxlmError

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234\n"
HTML = b"<!DOCTYPE html><html><body>Log in</body></html>"


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "pytorch_model.bin",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "../model.gguf",
    ],
)
@pytest.mark.parametrize(("content", "words"), [(LFS, "git lfs pull"), (HTML, "web page"), (b"", "is empty")])
def test_a_file_that_is_another_one(make_checkpoint, tmp_path, name, content, words):
    folder = Path(shutil.copytree(make_checkpoint(), tmp_path / "model"))
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(OnnxlmError, match=words):
        export(folder / name if name.endswith(".gguf") else folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


FOLDERS = {
    "": "The folder is empty",
    "adapter_config.json": "a LoRA adapter: export its base model with --lora",
    "model_index.json": "makes images",
    "params.json": "the authors' own format",
    "inner/config.json": "Give the folder inside",
    "model.onnx": "is of ONNX",
    "tf_model.h5": "is of TensorFlow",
    "model.safetensors.incomplete": "did not end",
    "readme.md": "A model folder holds config.json",
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_no_model(tmp_path, name):
    (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "model").mkdir(exist_ok=True)
    if name:
        (tmp_path / "model" / name).write_text("{}")
    with pytest.raises(OnnxlmError, match=FOLDERS[name]):
        export(tmp_path / "model", tmp_path / "out")


def test_a_download_that_did_not_end(make_checkpoint, tmp_path):
    folder = Path(shutil.copytree(make_checkpoint(), tmp_path / "model"))
    (folder / "model.safetensors").rename(folder / "model.safetensors.incomplete")
    with pytest.raises(OnnxlmError, match=r"model\.safetensors\.incomplete is a download that did not end"):
        export(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [
        ("m.zip", b"PK\x03\x04", "zip archive: unpack"),
        ("m.tar.gz", b"\x1f\x8b", "gzip archive: unpack"),
        ("m.tar", b"x", "tar archive: unpack"),
        ("m.onnx", b"x", "an ONNX graph already"),
        ("model.safetensors", b"x", "Give the folder that holds it"),
        ("model.bin2", b"GGUF", "by another name"),
    ],
)
def test_a_file_that_is_no_model(tmp_path, name, head, words):
    (tmp_path / name).write_bytes(head)
    with pytest.raises(OnnxlmError, match=words):
        export(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("words", [["compare", "EMBED"], ["prepare", "EMBED"], ["plan", "EMBED"], ["bench", "EMBED"]])
def test_a_bundle_of_another_kind_is_refused(tiny_checkpoint, tmp_path, words):
    embed = tmp_path / "embed"
    export(tiny_checkpoint, embed, ExportOptions(verify="none", task="embed", pooling="mean"))
    given = {"EMBED": str(embed)}
    done = CliRunner().invoke(main, [given.get(word, word) for word in words])
    assert (done.exit_code, "gives embeddings and no text" in done.output) == (1, True)


@pytest.mark.parametrize("same_size", [False, True])
def test_bundles_of_different_models_are_not_compared(make_checkpoint, make_bundle, tiny_bundle, tmp_path, same_size):
    folder = make_checkpoint(vocab_size=320 if same_size else 328)
    stored = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = stored["model"]["vocab"]
    first, second = [*vocabulary][100:102]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    other = make_bundle(folder)
    (tmp_path / "text.txt").write_text("Some words. " * 300)
    line = ["compare", str(other), "--reference", str(tiny_bundle), "--text", str(tmp_path / "text.txt")]
    done = CliRunner().invoke(main, line)
    assert (done.exit_code, "different vocabularies" in done.output) == (1, True)
