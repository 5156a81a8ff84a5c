"""What people give in place of a model, by its name or its first bytes, and what to do then."""

from pathlib import Path

_HEAD = 512
_NO_CONFIG = "A model folder holds config.json and *.safetensors."
# First bytes, and what begins with them.
_ARCHIVES = ((b"PK\x03\x04", "a zip archive"), (b"\x1f\x8b", "a gzip archive"), (b"7z\xbc\xaf", "a 7z archive"),
             (b"BZh", "a bzip2 archive"), (b"\xfd7zXZ", "an xz archive"))  # fmt: skip
_OTHER_WEIGHTS = {
    "*.msgpack": "Flax", "*.h5": "TensorFlow", "*.ckpt*": "TensorFlow or Lightning", "*.onnx": "ONNX",
    "*.pth": "the authors' own format", "*.mlmodel": "Core ML", "*.tflite": "TensorFlow Lite", "*.nemo": "NeMo",
}  # fmt: skip
_PARTIAL = ("*.incomplete", "*.part", "*.crdownload", "*.download", "*.aria2", "*.tmp")


def found_instead(path: Path) -> str:
    """A sentence, with a space before it, of a file that is no model file at all; or nothing."""
    head = _first_bytes(path)
    return "" if head is None else _instead(head)


def _first_bytes(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return None


def _instead(head: bytes) -> str:
    text = head.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    if not head:
        return " The file is empty: download it again."
    if head.startswith(b"version https://git-lfs"):
        return " It is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder, or download it."
    if text.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return " It is a web page, perhaps of a login or an error: log in, accept the licence, and download it again."
    return ""


def explain_file(path: Path) -> str:
    """What to give in place of a file that is no checkpoint by itself."""
    head = _first_bytes(path)
    if head is not None and (found := _instead(head)):
        return found.strip()
    head = head or b""
    if path.suffix == ".tar" or head[257:262] == b"ustar":
        return "It is a tar archive: unpack it, and give the folder that holds config.json."
    archive = next((what for start, what in _ARCHIVES if head.startswith(start)), None)
    if archive and path.suffix not in (".bin", ".pt", ".pth", ".ckpt"):
        return f"It is {archive}: unpack it, and give the folder that holds config.json."
    if path.suffix == ".onnx":
        return "It is an ONNX graph already, and only checkpoints are exported: give the one that it was made from."
    if path.suffix in (".safetensors", ".json", ".bin", ".pt", ".pth", ".model", ".jinja", ".txt", ".md"):
        return "Give the folder that holds it."
    if head.startswith(b"GGUF"):
        return "It is a GGUF file by another name: rename it to *.gguf."
    return "Give a .gguf file, or a model folder with config.json."


def explain_folder(folder: Path) -> str:
    """Why a folder without config.json is no model, and what to give."""
    if not any(folder.iterdir()):
        return f"The folder is empty. {_NO_CONFIG} Download the model first."
    if (folder / "adapter_config.json").is_file():
        return f"It is a LoRA adapter: export its base model with --lora {folder}."
    if (folder / "model_index.json").is_file():
        return "It is a pipeline that makes images (diffusers), not a language model."
    if (folder / "params.json").is_file():
        return "It is in the authors' own format (params.json): give the model's Hugging Face folder, or convert it."
    inner = sorted(path.parent.name for path in folder.glob("*/config.json"))
    if inner:
        return f"Give the folder inside: {', '.join(str(folder / name) for name in inner[:5])}."
    return f"{_NO_CONFIG}{other_weights(folder)}"


def other_weights(folder: Path) -> str:
    """A sentence, with a space before it, of weights that are there and cannot be read; or nothing."""
    partial = sorted(path.name for pattern in _PARTIAL for path in folder.glob(f"**/{pattern}"))
    if partial:
        return f" {partial[0]} is a download that did not end: download the model again."
    for pattern, what in _OTHER_WEIGHTS.items():
        if found := sorted(path.name for path in folder.glob(pattern)):
            return f" {found[0]} is of {what}, which is not read: give the model's safetensors."
    return ""
