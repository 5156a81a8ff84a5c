"""A GGUF model in several files, `name-00001-of-00003.gguf` and so on: the first has the metadata, all have tensors."""

import re
from dataclasses import replace
from pathlib import Path

from runtime.errors import CheckpointError

from .file import GgufFile, read_gguf

PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def read_all_parts(path: Path) -> tuple[GgufFile, tuple[Path, ...]]:
    """The header of the whole model, whichever part is given, and its files.

    Raises:
        CheckpointError: a part is missing, or belongs to another model.
    """
    file = read_gguf(path)
    count = file.metadata.get("split.count", 1)
    if type(count) is not int or count < 2:
        return file, (path,)
    paths = _paths(path, count)
    parts = [file if part == path else read_gguf(part) for part in paths]
    for index, part in enumerate(parts):
        if part.metadata.get("split.count") != count or part.metadata.get("split.no") != index:
            raise CheckpointError(f"{part.path}: is not part {index + 1} of {count}. Download it again.")
    tensors = {name: info for part in parts for name, info in part.tensors.items()}
    if len(tensors) != sum(len(part.tensors) for part in parts):
        raise CheckpointError(f"{path}: several parts hold the same tensor. Download them again.")
    return replace(parts[0], tensors=tensors), paths


def _paths(path: Path, count: int) -> tuple[Path, ...]:
    match = PART.fullmatch(path.name)
    if match is None or int(match.group(3)) != count:
        raise CheckpointError(
            f"{path}: is one of {count} parts, which are found by names like model-00001-of-{count:05}.gguf."
        )
    paths = tuple(path.with_name(f"{match.group(1)}-{i + 1:05}-of-{count:05}.gguf") for i in range(count))
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise CheckpointError(f"{path.parent}: part {missing[0]} is missing. Download all {count} parts.")
    return paths
