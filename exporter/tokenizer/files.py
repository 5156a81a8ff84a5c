"""The JSON files of a tokenizer's folder, and how they write a token."""

import json
from pathlib import Path
from typing import Any

from exporter.checkpoint.not_a_model import found_instead
from runtime.errors import CheckpointError


def token_text(value: Any) -> str | None:
    """A token is written as a string, or as an object with its text in `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def optional_json(path: Path) -> dict[str, Any]:
    """The object in a file, or an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}.{found_instead(path)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object.")
    return value


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
