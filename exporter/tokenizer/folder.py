"""The tokenizer files of a Hugging Face folder, as the bundle holds them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointError, UnsupportedError

from .splits import WORD_SPLITS

# The keys of tokenizer_config.json that chat templates and the runtime read.
TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token")
TEMPLATE = "chat_template.jinja"
# Byte-level classes that can be rebuilt from vocab.json and merges.txt, and how they cut words.
CLASSES = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}


def folder_tokenizer_files(folder: Path) -> dict[str, bytes]:
    """tokenizer.json as it is, the part of tokenizer_config.json that is used, and the chat template.

    Raises:
        CheckpointError: no tokenizer, or a broken file.
        UnsupportedError: a tokenizer that needs code to be read.
    """
    config = _optional_json(folder / "tokenizer_config.json")
    files = {"tokenizer.json": _tokenizer_json(folder, config)}
    template, named = _templates(folder, config)
    if template:
        files[TEMPLATE] = template.encode()
    kept: dict[str, Any] = {key: text for key in TOKEN_KEYS if (text := _token_text(config.get(key))) is not None}
    if isinstance(config.get("add_bos_token"), bool):
        kept["add_bos_token"] = config["add_bos_token"]
    if named:
        kept["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    files["tokenizer_config.json"] = json.dumps(kept, indent=1, ensure_ascii=False).encode()
    return files


def token_ids(files: Mapping[str, bytes]) -> dict[str, int]:
    """`bos_token_id` and so on by the names in tokenizer_config.json, for models whose config does not give them."""
    from tokenizers import Tokenizer

    tokenizer, config = Tokenizer.from_buffer(files["tokenizer.json"]), json.loads(files["tokenizer_config.json"])
    ids = {key: tokenizer.token_to_id(config[key]) for key in TOKEN_KEYS if key in config}
    return {f"{key}_id": i for key, i in ids.items() if i is not None}


def _tokenizer_json(folder: Path, config: Mapping[str, Any]) -> bytes:
    path = folder / "tokenizer.json"
    if path.is_file():
        return _checked(path)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _from_vocab_and_merges(folder, config)
    found = "tokenizer.model" if (folder / "tokenizer.model").is_file() else "no tokenizer file that it can read"
    raise UnsupportedError(
        f"{folder}: there is no tokenizer.json, only {found}. Make one: "
        "transformers' AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
    )


def _checked(path: Path) -> bytes:
    from tokenizers import Tokenizer

    try:
        content = path.read_bytes()
        Tokenizer.from_buffer(content)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise CheckpointError(f"{path}: cannot be read as a tokenizer: {error}") from error
    return content


def _from_vocab_and_merges(folder: Path, config: Mapping[str, Any]) -> bytes:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    from .bytelevel import pre_tokenizer

    name = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    if name not in CLASSES:
        raise UnsupportedError(
            f"{folder}: vocab.json and merges.txt without tokenizer.json can be read for {', '.join(CLASSES)}; "
            f"tokenizer_class is {name or 'not given'}."
        )
    split = WORD_SPLITS[CLASSES[name]]
    try:
        vocab, merges = models.BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        tokenizer = Tokenizer(models.BPE(vocab, merges))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise CheckpointError(f"{folder}: vocab.json and merges.txt cannot be read: {error}") from error
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer(split), decoders.ByteLevel()
    texts = {text for key in TOKEN_KEYS if (text := _token_text(config.get(key)))}
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in sorted(texts & set(vocab))]
    )
    return str(tokenizer.to_str()).encode()


def _templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The default template and the others by name. The file wins over tokenizer_config.json, as in transformers."""
    stored = config.get("chat_template")
    named: dict[str, str] = {}
    if isinstance(stored, list):
        pairs = [item for item in stored if isinstance(item, dict) and {"name", "template"} <= item.keys()]
        named = {str(item["name"]): str(item["template"]) for item in pairs}
        stored = named.pop("default", None)
    if (folder / TEMPLATE).is_file():
        stored = _text(folder / TEMPLATE)
    extra = folder / "additional_chat_templates"
    named |= {path.stem: _text(path) for path in sorted(extra.glob("*.jinja"))}
    return stored if isinstance(stored, str) else None, named


def _token_text(value: Any) -> str | None:
    """A token is written as a string, or as an object with its text in `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object.")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
