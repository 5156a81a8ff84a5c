"""The ids with a meaning in a GGUF file: begin, end, pad."""

from collections.abc import Mapping
from typing import Any

from runtime.errors import CheckpointError

ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
CONTROL = 3
NO_ID = (-1, 2**32 - 1)

# Control tokens that end an answer. Files often name only one of them as the end of the sequence.
END_TEXTS = frozenset({
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<|return|>", "<|call|>", "<turn|>", "<EOT>", "[EOT]",
})  # fmt: skip
# gpt-oss writes <|end|> between its channels: there it ends a part and not the answer.
HARMONY_END = "<|return|>"


def special_ids(metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`bos_token_id`, `eos_token_id` (a list) and `pad_token_id`, each only where the file has it.

    Raises:
        CheckpointError: an id that no token has; `where` names the file.
    """
    try:
        return _special_ids(metadata)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _special_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: _id(metadata, name) for name in ("bos_token_id", *ENDS)}
    ids["pad_token_id"] = _id(metadata, "padding_token_id")
    ends = [ids.pop(name) for name in ENDS]
    listed = metadata.get("tokenizer.ggml.eog_token_ids", ())
    ends += [_id({**metadata, "tokenizer.ggml.eog_token_ids": int(i)}, "eog_token_ids") for i in listed]
    known = list(dict.fromkeys([end for end in ends if end is not None] + _ends_by_text(metadata)))
    return {name: value for name, value in {**ids, "eos_token_id": known}.items() if value is not None and value != []}


def _id(metadata: Mapping[str, Any], name: str) -> int | None:
    """None where the file has none, which old converters write as -1."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    if value is None or value in NO_ID:
        return None
    if type(value) is not int or not 0 <= value < len(tokens):
        raise CheckpointError(
            f"metadata tokenizer.ggml.{name} is {value!r}, not the id of one of {len(tokens)} tokens. Correct it with "
            "gguf-set-metadata, or export from the original Hugging Face folder."
        )
    return value


def _ends_by_text(metadata: Mapping[str, Any]) -> list[int]:
    tokens, kinds = metadata.get("tokenizer.ggml.tokens", ()), metadata.get("tokenizer.ggml.token_type", ())
    found = {text: i for i, (text, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == CONTROL}
    ends = END_TEXTS - {"<|end|>"} if HARMONY_END in found else END_TEXTS
    return sorted(found[text] for text in ends & found.keys())
