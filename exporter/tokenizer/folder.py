"""The tokenizer files of a Hugging Face folder, as the bundle holds them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.checkpoint.not_a_model import found_instead
from runtime.errors import CheckpointError, UnsupportedError

from .class_options import unknown_keys, with_class_options
from .declared import declared_tokens, with_declared_tokens
from .files import optional_json, token_text
from .splits import WORD_SPLITS
from .templates import TEMPLATE, read_templates

OTHER_TOKENIZERS = ("tokenizer.model", "spiece.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt")

# The keys of tokenizer_config.json that chat templates and the runtime read.
TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token")
# Byte-level classes that can be rebuilt from vocab.json and merges.txt, and how they cut words.
CLASSES = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}


def folder_tokenizer_files(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """The folder's tokenizer as a bundle has it, and what a user should know.

    tokenizer.json as it is, with the tokens that other files declare; the part of tokenizer_config.json that is used;
    chat_template.jinja.

    Raises:
        CheckpointError: no tokenizer, or a broken file.
        UnsupportedError: a tokenizer that needs code to be read.
    """
    config = optional_json(folder / "tokenizer_config.json")
    content = with_class_options(_tokenizer_json(folder, config), config, folder / "tokenizer_config.json")
    content, told = with_declared_tokens(content, declared_tokens(folder, config), folder)
    files = {"tokenizer.json": content}
    template, named, notes = read_templates(folder, config)
    if template:
        files[TEMPLATE] = template.encode()
    kept: dict[str, Any] = dict(token_texts(config))
    if "added_tokens_decoder" not in config:  # otherwise transformers does not read that file
        kept |= token_texts(optional_json(folder / "special_tokens_map.json"))
    if not isinstance(bos := config.get("add_bos_token"), bool | None):
        raise CheckpointError(f"{folder / 'tokenizer_config.json'}: add_bos_token is {bos!r}; accepted: true or false.")
    if bos is not None:
        kept["add_bos_token"] = bos
    if named:
        kept["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    files["tokenizer_config.json"] = json.dumps(kept, indent=1, ensure_ascii=False).encode()
    return files, [*told, *notes, *unknown_keys(config, folder / "tokenizer_config.json")]


def token_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the tokens with a role."""
    return {key: text for key in TOKEN_KEYS if (text := token_text(config.get(key))) is not None}


def token_ids(files: Mapping[str, bytes]) -> dict[str, int]:
    """`bos_token_id` and so on by the names in tokenizer_config.json, for models whose config does not give them."""
    from tokenizers import Tokenizer

    if "tokenizer.json" not in files or "tokenizer_config.json" not in files:
        return {}
    tokenizer, config = Tokenizer.from_buffer(files["tokenizer.json"]), json.loads(files["tokenizer_config.json"])
    ids = {key: tokenizer.token_to_id(config[key]) for key in TOKEN_KEYS if key in config}
    return {f"{key}_id": i for key, i in ids.items() if i is not None}


def _tokenizer_json(folder: Path, config: Mapping[str, Any]) -> bytes:
    path = folder / "tokenizer.json"
    if path.is_file():
        return _checked(path)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _from_vocab_and_merges(folder, config)
    others = [name for name in OTHER_TOKENIZERS if (folder / name).is_file()]
    found = f", only {others[0]}" if others else " and no other tokenizer file"
    raise UnsupportedError(
        f"{folder}: there is no tokenizer.json{found}. Make one: "
        "transformers' AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
    )


def _checked(path: Path) -> bytes:
    from tokenizers import Tokenizer

    try:
        content = path.read_bytes()
        Tokenizer.from_buffer(content)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise CheckpointError(f"{path}: cannot be read as a tokenizer: {error}.{found_instead(path)}") from error
    if dropout := json.loads(content)["model"].get("dropout"):
        raise CheckpointError(f"{path}: model.dropout {dropout!r} makes ids random: that is for training. Set it to 0.")
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
    texts = {text for key in TOKEN_KEYS if (text := token_text(config.get(key)))}
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in sorted(texts & set(vocab))]
    )
    return str(tokenizer.to_str()).encode()
