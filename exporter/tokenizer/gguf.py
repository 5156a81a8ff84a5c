"""The tokenizer files of a GGUF file, rebuilt from its metadata.

The original repository's tokenizer.json is better where it is at hand; this is for files that come alone.
"""

import json
from collections.abc import Mapping
from typing import Any

from runtime.errors import CheckpointError, UnsupportedError

from .bytelevel import byte_level_tokenizer
from .sentencepiece import gemma4_tokenizer, sentencepiece_tokenizer, spelled_tokenizer
from .splits import SENTENCEPIECE, WORD_SPLITS
from .vocabulary import ROLES, Vocabulary, read_vocabulary

BUILDERS = {"gpt2": byte_level_tokenizer, "llama": sentencepiece_tokenizer, "gemma4": gemma4_tokenizer}


def gguf_tokenizer_files(metadata: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and, where the file has a template, chat_template.jinja.

    Raises:
        CheckpointError: the metadata is incomplete or contradictory; `where` names the file.
        UnsupportedError: a tokenizer that cannot be rebuilt.
    """
    vocabulary = read_vocabulary(metadata, where)
    config, (template, named) = _config(vocabulary), _templates(metadata, where)
    if named:
        config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    files = {
        "tokenizer.json": _tokenizer_json(vocabulary).encode(),
        "tokenizer_config.json": json.dumps(config, indent=1, ensure_ascii=False).encode(),
    }
    if template:
        files["chat_template.jinja"] = template.encode()
    return files


def _templates(metadata: Mapping[str, Any], where: str) -> tuple[str, dict[str, str]]:
    """The default template, and the others by name. One that is alone under a name is the default one."""
    prefix = "tokenizer.chat_template"
    stored = {key: text for key, text in metadata.items() if key == prefix or key.startswith(f"{prefix}.")}
    for key, text in stored.items():
        if not isinstance(text, str):
            raise CheckpointError(f"{where}: metadata {key} is {text!r:.60}, not the text of a chat template.")
    named = {key.removeprefix(f"{prefix}."): text for key, text in stored.items() if key != prefix and text}
    default = stored.get(prefix, "")
    return default or named.pop(next(iter(named), ""), ""), named


def _tokenizer_json(vocabulary: Vocabulary) -> str:
    verbatim = vocabulary.metadata.get("tokenizer.huggingface.json")
    if isinstance(verbatim, str) and verbatim:
        return verbatim
    kind = vocabulary.get("model")
    if kind not in BUILDERS:
        raise UnsupportedError(
            f"{vocabulary.where}: tokenizer.ggml.model is {kind!r}; supported are {', '.join(BUILDERS)}. "
            "Export from the original Hugging Face folder instead."
        )
    build = spelled_tokenizer if kind == "gpt2" and vocabulary.get("pre") in SENTENCEPIECE else BUILDERS[kind]
    try:
        return str(build(vocabulary).to_str())
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{vocabulary.where}: the tokenizer cannot be built: {error}") from error


def _config(vocabulary: Vocabulary) -> dict[str, Any]:
    """The part of tokenizer_config.json that chat templates and the runtime read."""
    ids = {key: vocabulary.role(name) for key, name in ROLES.items()}
    pre = vocabulary.get("pre")
    default = vocabulary.get("model") == "llama" or (pre in WORD_SPLITS and WORD_SPLITS[pre].add_bos)
    return {
        **{key: vocabulary.tokens[i] for key, i in ids.items() if i is not None},
        "add_bos_token": vocabulary.get("model") != "gemma4" and bool(vocabulary.get("add_bos_token", default)),
    }
