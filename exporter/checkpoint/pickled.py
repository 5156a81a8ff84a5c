"""pytorch_model.bin: a pickle, only ever opened by a child process and with `weights_only`; safetensors come back.

`python -m exporter.checkpoint.pickled OUT FILE...` is that child; nothing else in this package loads torch.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from runtime.errors import CheckpointError, MissingDependencyError

from .not_a_model import found_instead

BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MARK = "cannot convert "  # the child's own messages start so


def find_pickles(folder: Path) -> list[Path]:
    """The pickled weight files of a Hugging Face folder, a single one before an index, as in transformers."""
    if (folder / BIN).is_file() or not (folder / BIN_INDEX).is_file():
        return [folder / BIN] if (folder / BIN).is_file() else []
    files = [folder / name for name in sorted(set(_places(folder).values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{folder / missing[0]}: this shard is named by {BIN_INDEX} and missing. Download it again."
        )
    return files


def require_indexed(folder: Path, held: Mapping[str, str]) -> None:
    """Each name of the index is in the shard that it names; `held` maps tensors to files, without endings.

    Raises:
        CheckpointError: one is not.
    """
    if (folder / BIN).is_file():
        return  # the index is not read
    for name, file in _places(folder).items():
        if held.get(name) != Path(file).stem:
            raise CheckpointError(
                f"{folder / BIN_INDEX}: tensor {name!r} should be in {file}, but is not. Download that file again."
            )


def _places(folder: Path) -> dict[str, str]:
    """The index: tensors, and the files that hold them."""
    try:
        places = json.loads((folder / BIN_INDEX).read_text(encoding="utf-8"))["weight_map"]
        return {name: Path(file).name for name, file in places.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / BIN_INDEX}: weight_map must map tensor names to file names.") from error


class ScratchFolder:
    """A temporary folder that is removed together with this object, at the latest when the program ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="onnxlm-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def convert_pickles(files: Sequence[Path]) -> ScratchFolder:
    """Convert to one safetensors file each, in a temporary folder that lives as long as the returned object.

    Raises:
        CheckpointError: not a file of plain tensors; nothing was executed.
        MissingDependencyError: torch is not installed.
    """
    if find_spec("torch") is None:
        raise MissingDependencyError(
            f"{files[0]}: reading pickled weights needs torch: pip install torch, or download safetensors instead."
        )
    for file in files:
        if found := found_instead(file):
            raise CheckpointError(f"{file}: cannot be read as weights.{found}")
    scratch = ScratchFolder()
    command = [sys.executable, "-P", "-m", __name__, str(scratch.path), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own module
    if done.returncode:
        scratch.remove()
        lines = done.stderr.strip().splitlines() or [f"the converter ended with status {done.returncode}"]
        last = next((line for line in reversed(lines) if line.startswith(MARK)), lines[-1])
        raise CheckpointError(f"{last} Only files of plain tensors are read; safetensors is the safe format.")
    return scratch


def _convert(file: Path, output: Path) -> None:
    import torch
    from safetensors.torch import save_file

    state = torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    state = state.get("state_dict", state)
    # clone: safetensors stores no shared memory
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in state.items()}, output)


def main() -> None:
    """The child: convert FILE... into OUT."""
    output, *files = map(Path, sys.argv[1:])
    for file in files:
        try:
            _convert(file, output / f"{file.stem}.safetensors")
        except Exception as error:  # noqa: BLE001  # whatever a broken pickle raises
            sys.exit(f"{MARK}{file}: {type(error).__name__}: {' '.join(str(error).split())[:200]}.")


if __name__ == "__main__":
    main()
