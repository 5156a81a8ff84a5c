"""Tokens that a folder declares beside tokenizer.json, added to it as transformers adds them when it opens the folder.

They are in `added_tokens_decoder` of tokenizer_config.json, or else in special_tokens_map.json and added_tokens.json;
tokens with a role (`eos_token`) and `additional_special_tokens` follow. A new token takes the next free id.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointError

from .files import optional_json

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA = ("extra_special_tokens", "additional_special_tokens")
OF_MODEL = "model_specific_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class DeclaredToken:
    """A token as a file declares it. `id`: as stated there, or None. `flags`: of tokenizers' AddedToken."""

    text: str
    id: int | None
    flags: Mapping[str, bool]


def declared_tokens(folder: Path, config: Mapping[str, Any]) -> list[DeclaredToken]:
    """All of them, in the order in which they are added.

    Raises:
        CheckpointError: a declaration that is not one.
    """
    settings, where = dict(config), folder / "tokenizer_config.json"
    if "added_tokens_decoder" in config:
        listed = _from_decoder(config["added_tokens_decoder"], where)
    else:
        settings |= optional_json(folder / "special_tokens_map.json")
        named = {_text(value, where) for value in _special(settings, where)}
        listed = [
            DeclaredToken(text, i, {"normalized": text not in named, "special": text in named})
            for text, i in sorted(_added_json(folder).items(), key=lambda pair: pair[1])
        ]
    known = {token.text for token in listed}
    for value in _special(settings, where):
        if (text := _text(value, where)) not in known:
            flags = {key: value[key] for key in _FLAGS if key in value} if isinstance(value, dict) else {}
            listed.append(DeclaredToken(text, None, {**flags, "special": True}))
            known.add(text)
    return listed


def with_declared_tokens(content: bytes, declared: Sequence[DeclaredToken], folder: Path) -> tuple[bytes, list[str]]:
    """A tokenizer.json with the declared tokens that it lacks, and what a user should know.

    The bytes are the same where it lacks none.
    """
    from tokenizers import AddedToken, Tokenizer

    has = {token["content"]: token for token in json.loads(content).get("added_tokens") or ()}
    missing = [token for token in declared if not _is_there(token, has)]
    if not missing:
        return content, _moved(declared, Tokenizer.from_buffer(content), folder)
    tokenizer = Tokenizer.from_buffer(content)
    roles = {token.text for token in declared if token.id is None}
    for token in missing:
        flags = {**token.flags, "special": token.flags.get("special", False) or token.text in roles}
        added = AddedToken(token.text, **flags)
        (tokenizer.add_special_tokens if flags["special"] else tokenizer.add_tokens)([added])
    return str(tokenizer.to_str()).encode(), _moved(declared, tokenizer, folder)


def _is_there(token: DeclaredToken, has: Mapping[str, Mapping[str, Any]]) -> bool:
    """A role names a token; a declaration with flags says how it is matched, too."""
    stored = has.get(token.text)
    return stored is not None and (token.id is None or all(stored.get(key) == on for key, on in token.flags.items()))


def _moved(declared: Sequence[DeclaredToken], tokenizer: Any, folder: Path) -> list[str]:
    other = [token for token in declared if token.id is not None and tokenizer.token_to_id(token.text) != token.id]
    if not other:
        return []
    token = other[0]
    return [
        f"{folder}: {token.text!r} is declared as token {token.id}, and is {tokenizer.token_to_id(token.text)} by the "
        "vocabulary, which counts, as in transformers."
    ]


def _from_decoder(value: Any, where: Path) -> list[DeclaredToken]:
    try:
        pairs = sorted((int(i), token) for i, token in value.items())
        return [DeclaredToken(token["content"], i, _flags(token)) for i, token in pairs]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: added_tokens_decoder must map ids to tokens with their content.") from error


def _flags(token: Mapping[str, bool]) -> dict[str, bool]:
    """Those that are left out are off, but that ordinary tokens are matched in normalized text."""
    return {key: token.get(key, key == "normalized" and not token.get("special")) for key in _FLAGS}


def _added_json(folder: Path) -> dict[str, int]:
    path = folder / "added_tokens.json"
    tokens = optional_json(path)
    if not all(type(i) is int and i >= 0 for i in tokens.values()):
        raise CheckpointError(f"{path}: must map texts to ids.")
    return tokens


def _special(settings: Mapping[str, Any], where: Path) -> list[Any]:
    """The values of tokens with a role, also of those that only this model has, and the list of others."""
    roles = [settings[key] for key in ROLES if settings.get(key) is not None]
    own = [
        value
        for key, value in settings.items()
        if key.endswith("_token") and key not in ROLES and isinstance(value, str)
    ]
    model: Any = settings.get(OF_MODEL) or {}
    if not isinstance(model, dict):
        raise CheckpointError(f"{where}: {OF_MODEL} must map names to tokens, got {model!r:.80}.")
    own += model.values()
    extra: Any = next((settings[key] for key in EXTRA if settings.get(key)), [])
    if isinstance(extra, dict):
        return [*roles, *own, *extra.values()]
    if not isinstance(extra, list):
        raise CheckpointError(f"{where}: {EXTRA[1]} must be a list of tokens, got {extra!r:.80}.")
    return [*roles, *own, *extra]


def _text(value: Any, where: Path) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise CheckpointError(f"{where}: a token is a text, or an object with its content; got {value!r:.80}.")
    return text
