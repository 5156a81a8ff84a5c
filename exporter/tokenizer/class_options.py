"""Settings of tokenizer_config.json that change ids whatever tokenizer.json says, as transformers applies them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.errors import UnsupportedError

# Classes that build their pre-tokenizer themselves; all others take tokenizer.json as it is.
_BUILD_PREFIX = ("GPT2Tokenizer", "GPTNeoXTokenizer", "CodeGenTokenizer")

# Read here or in `declared` and `templates`; or of no influence beside a tokenizer.json, in transformers as here.
_KNOWN = frozenset(
    """
    add_bos_token add_eos_token add_prefix_space added_tokens_decoder additional_special_tokens auto_map backend
    chat_template clean_up_tokenization_spaces do_lower_case errors extra_special_tokens fast_tokenizer is_local
    fix_mistral_regex is_fast legacy local_files_only max_length merges_file model_input_names model_max_length
    model_specific_special_tokens model_type name_or_path pad_to_multiple_of pad_token_type_id padding padding_side
    processor_class return_token_type_ids sp_model_kwargs spaces_between_special_tokens special_tokens_map_file
    split_special_tokens stride tokenizer_class tokenizer_file tokenizer_type trim_offsets truncation truncation_side
    truncation_strategy unk_id use_default_system_prompt use_fast vocab_file
    """.split()  # noqa: SIM905
)


def unknown_keys(config: Mapping[str, Any], where: Path) -> list[str]:
    """A warning that names the keys that nobody reads; any `..._token` declares a token."""
    unknown = [key for key in config if key not in _KNOWN and not key.endswith(("_token", "_token_id"))]
    return [f"{where}: {', '.join(unknown)}: not known, and not read, as in transformers."] if unknown else []


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
