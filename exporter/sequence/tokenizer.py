"""The end token behind every text, where a checkpoint's settings put one and its tokenizer.json does not."""

from dataclasses import replace
from typing import Any

from runtime.errors import CheckpointError

from ..checkpoint import Checkpoint
from ..tokenizer.files import optional_json, token_text


def with_end_token(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, with `add_eos_token: true` of tokenizer_config.json carried out in its tokenizer.json.

    The last token is the one that such models were trained to pool at.

    Raises:
        CheckpointError: the end token is wanted, and not named or not in the vocabulary.
    """
    content = checkpoint.tokenizer_files.get("tokenizer.json")
    if checkpoint.path is None or not checkpoint.path.is_dir() or content is None:
        return checkpoint
    where = checkpoint.path / "tokenizer_config.json"
    config = optional_json(where)
    if config.get("add_eos_token") is not True:
        return checkpoint
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(content)
    end = token_text(config.get("eos_token"))
    number = None if end is None else tokenizer.token_to_id(end)
    if number is None:
        raise CheckpointError(f"{where}: add_eos_token is true, and eos_token {end!r} is no token of tokenizer.json.")
    if tokenizer.encode("a").ids[-1:] == [number]:
        return checkpoint
    tokenizer.post_processor = _ending(tokenizer, str(end), number)
    files = {**checkpoint.tokenizer_files, "tokenizer.json": str(tokenizer.to_str()).encode()}
    return replace(checkpoint, tokenizer_files=files)


def _ending(tokenizer: Any, end: str, number: int) -> Any:
    """What stands around a text already, and the end token behind it."""
    from tokenizers import processors

    ids, plain = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
    start = next((i for i in range(len(ids)) if ids[i : i + len(plain)] == plain), 0)
    before, after = ids[:start], [*ids[start + len(plain) :], number]
    texts = {i: tokenizer.id_to_token(i) for i in (*before, *after)} | {number: end}
    first, last = [texts[i] for i in before], [texts[i] for i in after]
    return processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{text}:1" for text in first), "$B:1", *(f"{text}:1" for text in last)],
        special_tokens=[(text, i) for i, text in texts.items()],
    )
