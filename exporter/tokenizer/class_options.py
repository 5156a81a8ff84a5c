"""Settings of tokenizer_config.json that change ids whatever tokenizer.json says, as transformers applies them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.errors import UnsupportedError

# Classes that build their pre-tokenizer themselves; all others take tokenizer.json as it is.
_BUILD_PREFIX = ("GPT2Tokenizer", "GPTNeoXTokenizer", "CodeGenTokenizer")


def with_class_options(content: bytes, config: Mapping[str, Any], where: Path) -> bytes:
    """A tokenizer.json with `add_prefix_space` as the class sets it; the same bytes where nothing differs.

    Raises:
        UnsupportedError: `split_special_tokens`, with which no chat template can mark a turn.
    """
    if config.get("split_special_tokens"):
        raise UnsupportedError(
            f"{where}: split_special_tokens cuts special tokens into letters: no prompt could hold one. Take it out."
        )
    name, prefix = str(config.get("tokenizer_class", "")).removesuffix("Fast"), config.get("add_prefix_space")
    if name not in _BUILD_PREFIX or not isinstance(prefix, bool):
        return content
    tokenizer = json.loads(content)
    parts = [part for part in _parts(tokenizer.get("pre_tokenizer")) if part.get("add_prefix_space") is (not prefix)]
    for part in parts:
        part["add_prefix_space"] = prefix
    return json.dumps(tokenizer, ensure_ascii=False).encode() if parts else content


def _parts(pre_tokenizer: Any) -> list[dict[str, Any]]:
    """Byte-level parts, also those of a sequence."""
    if not isinstance(pre_tokenizer, dict):
        return []
    if pre_tokenizer.get("type") == "Sequence":
        return [part for inner in pre_tokenizer.get("pretokenizers", ()) for part in _parts(inner)]
    return [pre_tokenizer] if pre_tokenizer.get("type") == "ByteLevel" else []
