"""Finds out what a source is and hands it to the reader of that format."""

from pathlib import Path

from runtime.errors import CheckpointError, UnsupportedError

from .checkpoint import Checkpoint


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a model without reading its weights.

    Args:
        source: a Hugging Face folder (config.json and safetensors), or a .gguf file.

    Raises:
        CheckpointError: nothing there, or broken; names the file and the key.
        UnsupportedError: a format that is not supported.
    """
    path = Path(source)
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise CheckpointError(
            f"{source}: no such file or folder. Give a model folder with config.json, or a .gguf file."
        )
    if path.suffix == ".gguf":
        from .gguf import open_gguf

        return open_gguf(path)
    advice = "give the folder that holds it" if path.suffix in (".safetensors", ".json") else "accepted are .gguf files"
    raise UnsupportedError(f"{source}: not a checkpoint that can be opened by itself: {advice}.")


def _open_folder(folder: Path) -> Checkpoint:
    if (folder / "config.json").is_file():
        from .folder import open_folder

        return open_folder(folder)
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return open_checkpoint(ggufs[0])
    if ggufs:
        names = ", ".join(path.name for path in ggufs)
        raise CheckpointError(f"{folder}: holds several GGUF files; give the one to export: {names}.")
    raise CheckpointError(f"{folder}: no config.json. A model folder holds config.json and *.safetensors.")
