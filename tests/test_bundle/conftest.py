"""A manifest to start from: the example of FORMAT.md, so that the specification is what the tests run on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runtime.bundle.bundle import write_manifest
from runtime.bundle.manifest import parse_manifest

FORMAT = Path(__file__).parents[2] / "FORMAT.md"


@pytest.fixture
def example() -> dict[str, Any]:
    """The example manifest as parsed JSON, free to be changed."""
    (block,) = re.findall(r"```json\n(.*?)```", FORMAT.read_text(encoding="utf-8"), re.S)
    return json.loads(block)


@pytest.fixture
def folder(example, tmp_path) -> Path:
    """A bundle whose files hold a few bytes each: enough for all that the bundle itself can check."""
    target = tmp_path / "bundle"
    target.mkdir()
    for name in example["files"]:
        (target / name).write_bytes(f"content of {name}".encode())
    write_manifest(target, parse_manifest(json.dumps(example)))
    return target
