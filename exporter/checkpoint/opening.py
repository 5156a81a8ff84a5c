"""Finds out what a source is and hands it to the reader of that format."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointError, UnsupportedError

from .checkpoint import Checkpoint
from .not_a_model import explain_file, explain_folder


def open_checkpoint(
    source: Any,
    *,
    lora: str | Path | Sequence[str | Path] | None = None,
    revision: str | None = None,
    tokenizer: Any = None,
) -> Checkpoint:
    """Open a model without reading its weights.

    Args:
        source: a Hugging Face folder (config.json and weights), a .gguf file, a hub id, or a live torch module.
        lora: folder of a PEFT LoRA adapter, or several of them, merged into the weights as they are read.
        revision: branch, tag or commit of a hub id.
        tokenizer: of a live module; it has `save_pretrained(folder)`.

    Raises:
        CheckpointError: nothing there, or broken; names the file and the key.
        UnsupportedError: a format that is not supported.
    """
    checkpoint = _open(source, revision) if isinstance(source, str | Path) else _open_live(source, revision, tokenizer)
    for adapter in [lora] if isinstance(lora, str | Path) else lora or ():
        from .lora import merge_lora

        checkpoint = merge_lora(checkpoint, Path(adapter))
    return checkpoint


def _open(source: str | Path, revision: str | None) -> Checkpoint:
    from .hub import fetch, is_hub_id

    if Path(source).exists():
        if revision is not None:
            raise CheckpointError(f"{source}: a revision is for hub ids; this is a path.")
        return _open_path(Path(source))
    if not is_hub_id(str(source)):
        raise CheckpointError(
            f"{source}: no such file or folder. Give a model folder with config.json, a .gguf file, or a hub id."
        )
    path, commit = fetch(str(source), revision)
    return replace(_open_path(path), name=str(source), revision=commit)


def _open_path(path: Path) -> Checkpoint:
    return replace(_read_path(path), path=path)


def _read_path(path: Path) -> Checkpoint:
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".gguf":
        from .gguf.checkpoint import open_gguf

        return open_gguf(path)
    raise UnsupportedError(f"{path}: not a checkpoint that can be opened by itself. {explain_file(path)}")


def _open_folder(folder: Path) -> Checkpoint:
    if (folder / "config.json").is_file():
        from .safetensors.folder import open_folder

        return open_folder(folder)
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return _open_path(ggufs[0])
    if ggufs:
        names = ", ".join(path.name for path in ggufs)
        raise CheckpointError(f"{folder}: holds several GGUF files; give the one to export: {names}.")
    raise CheckpointError(f"{folder}: no config.json. {explain_folder(folder)}")


def _open_live(source: Any, revision: str | None, tokenizer: Any) -> Checkpoint:
    if not hasattr(source, "state_dict"):
        raise CheckpointError(f"{type(source).__name__}: not a path, a hub id or a torch module.")
    if revision is not None:
        raise CheckpointError(f"{type(source).__name__}: a revision is for hub ids; this is a live model.")
    from .live import open_module

    return open_module(source, tokenizer)
