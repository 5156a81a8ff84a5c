"""The tokenizer of a GGUF file, rebuilt from its metadata as tokenizer.json and what goes with it.

Prefer the original repository's tokenizer.json where it is at hand; this is for files that come alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from runtime.errors import CheckpointError, UnsupportedError

from .tokenizer_splits import WORD_SPLITS, WordSplit

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "▁"
NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
WORD_GEMMAS = ("gemma", "gemma2", "gemma3")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file by id, with what the file says of them."""

    where: str
    tokens: Sequence[str]
    kinds: Sequence[int]
    metadata: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """Metadata `tokenizer.ggml.key`."""
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def named(self, name: str) -> int | None:
        """Id of "bos", "eos", "unknown", "padding", where the file has it."""
        value = self.get(f"{name}_token_id")
        return value if type(value) is int and 0 <= value < len(self.tokens) else None


def tokenizer_files(metadata: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja of a GGUF file.

    Raises:
        CheckpointError: the metadata is incomplete or contradictory; `where` names the file.
        UnsupportedError: a tokenizer that cannot be rebuilt.
    """
    vocabulary = _vocabulary(metadata, where)
    files = {
        "tokenizer.json": _tokenizer_json(vocabulary).encode(),
        "tokenizer_config.json": json.dumps(_config(vocabulary), indent=1, ensure_ascii=False).encode(),
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        files["chat_template.jinja"] = template.encode()
    return files


def _vocabulary(metadata: Mapping[str, Any], where: str) -> Vocabulary:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise CheckpointError(f"{where}: metadata tokenizer.ggml.tokens is missing; this file has no tokenizer.")
    texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
    if len(set(texts)) != len(texts):
        twice = next(text for i, text in enumerate(texts) if text in texts[:i])
        raise CheckpointError(f"{where}: token {twice!r} appears twice in tokenizer.ggml.tokens.")
    kinds = [int(kind) for kind in metadata.get("tokenizer.ggml.token_type", ())] or [NORMAL] * len(texts)
    if len(kinds) != len(texts):
        raise CheckpointError(f"{where}: {len(kinds)} entries in tokenizer.ggml.token_type for {len(texts)} tokens.")
    return Vocabulary(where, texts, kinds, metadata)


def _tokenizer_json(vocabulary: Vocabulary) -> str:
    verbatim = vocabulary.metadata.get("tokenizer.huggingface.json")
    if isinstance(verbatim, str) and verbatim:
        return verbatim
    kind = vocabulary.get("model")
    try:
        if kind == "gpt2":
            return str(_byte_level(vocabulary).to_str())
        if kind == "llama":
            return str(_sentencepiece(vocabulary).to_str())
    except CheckpointError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise CheckpointError(f"{vocabulary.where}: the tokenizer cannot be built: {error}") from error
    raise UnsupportedError(
        f"{vocabulary.where}: tokenizer.ggml.model is {kind!r}; supported are gpt2 and llama. "
        "Export from the original Hugging Face folder instead."
    )


def _byte_level(vocabulary: Vocabulary) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers

    split = _word_split(vocabulary)
    spelled = _spelled(vocabulary)
    merges = [_merge(text, vocabulary.where) for text in vocabulary.get("merges", ())]
    model = models.BPE({text: i for i, text in enumerate(spelled)}, merges, ignore_merges=split.ignore_merges)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC() if split.nfc else None
    tokenizer.pre_tokenizer = _pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, vocabulary, spelled)
    _add_ends(tokenizer, vocabulary, bos_default=split.add_bos)
    return tokenizer


def _word_split(vocabulary: Vocabulary) -> WordSplit:
    name = vocabulary.get("pre")
    if name not in WORD_SPLITS:
        raise UnsupportedError(
            f"{vocabulary.where}: tokenizer.ggml.pre is {name!r}; supported are {', '.join(sorted(WORD_SPLITS))}. "
            "Export from the original Hugging Face folder, or convert the file again with a current converter."
        )
    return WORD_SPLITS[name]


def _pre_tokenizer(split: WordSplit) -> Any:
    from tokenizers import Regex, pre_tokenizers

    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _spelled(vocabulary: Vocabulary) -> list[str]:
    """Ordinary tokens in the byte alphabet, as merges need them; special ones as they are."""
    alphabet = _byte_alphabet()
    written = set(alphabet.values())
    return [
        text if written.issuperset(text) or _is_added(vocabulary, i) else "".join(alphabet[b] for b in text.encode())
        for i, text in enumerate(vocabulary.tokens)
    ]


def _is_added(vocabulary: Vocabulary, i: int) -> bool:
    """Matched whole in the text. Converters also label ordinary tokens as control: those do not look like tags."""
    text, kind = vocabulary.tokens[i], vocabulary.kinds[i]
    if kind == CONTROL:
        tag = (text[0], text[-1]) in (("<", ">"), ("[", "]"))
        return tag or _byte_alphabet_set().issuperset(text) or i in map(vocabulary.named, NAMED.values())
    return kind in (UNKNOWN, USER_DEFINED)


@cache
def _byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


@cache
def _byte_alphabet_set() -> frozenset[str]:
    return frozenset(_byte_alphabet().values())


def _merge(text: str, where: str) -> tuple[str, str]:
    left, _, right = text.partition(" ")
    if not left or not right:
        raise CheckpointError(f"{where}: tokenizer.ggml.merges holds {text!r}; expected two tokens and a space.")
    return left, right


def _sentencepiece(vocabulary: Vocabulary) -> "Tokenizer":
    from tokenizers import Tokenizer, models

    architecture = vocabulary.metadata.get("general.architecture")
    gemma = architecture in WORD_GEMMAS
    texts = [SPACE * len(t) if gemma and not t.strip(" ") else t for t in vocabulary.tokens]
    ids = {text: i for i, text in enumerate(texts)}
    unknown = vocabulary.named("unknown")
    model = models.BPE(
        ids,
        _merges(vocabulary, ids, by_position=gemma),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else texts[unknown],
    )
    tokenizer = Tokenizer(model)
    style = "gemma" if gemma else "legacy" if architecture == "phi3" else "metaspace"
    _dress_sentencepiece(tokenizer, style, prefix=vocabulary.get("add_space_prefix", True) is not False)
    _add_tokens(tokenizer, vocabulary, texts)
    _add_ends(tokenizer, vocabulary, bos_default=True)
    return tokenizer


def _dress_sentencepiece(tokenizer: "Tokenizer", style: str, prefix: bool) -> None:
    from tokenizers import decoders, normalizers, pre_tokenizers

    to_space = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if style == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        prefix = False
    elif style == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    else:
        scheme = "first" if prefix else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(to_space + ([decoders.Strip(" ", 1, 0)] if prefix else []))


def _merges(vocabulary: Vocabulary, ids: Mapping[str, int], by_position: bool) -> list[tuple[str, str]]:
    """The merges of the file, or those its scores imply: every way to cut a token into two tokens, best token first."""
    stored = vocabulary.get("merges")
    if stored is not None:
        return [_merge(text, vocabulary.where) for text in stored]
    scores = [-float(i) for i in range(len(ids))] if by_position else [float(s) for s in vocabulary.get("scores", ())]
    if len(scores) != len(vocabulary.tokens):
        raise CheckpointError(
            f"{vocabulary.where}: {len(scores)} entries in tokenizer.ggml.scores, one per token needed."
        )
    cuts = [
        (scores[i], len(text[:at]), len(text) - at, text[:at], text[at:])
        for text, i in ids.items()
        for at in range(1, len(text))
        if text[:at] in ids and text[at:] in ids
    ]
    cuts.sort(key=lambda cut: cut[:3], reverse=True)
    return [(left, right) for *_, left, right in cuts]


def _add_tokens(tokenizer: "Tokenizer", vocabulary: Vocabulary, texts: Sequence[str]) -> None:
    from tokenizers import AddedToken

    added = [i for i in range(len(texts)) if _is_added(vocabulary, i)]
    special = [i for i in added if vocabulary.kinds[i] != USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(texts[i], normalized=False, special=True) for i in special])
    plain = [i for i in added if vocabulary.kinds[i] == USER_DEFINED]
    tokenizer.add_tokens([AddedToken(texts[i], normalized=False, special=False) for i in plain])


def _add_ends(tokenizer: "Tokenizer", vocabulary: Vocabulary, bos_default: bool) -> None:
    """The bos and eos tokens that encoding puts around the text."""
    from tokenizers import processors

    wanted = {"bos": vocabulary.get("add_bos_token", bos_default), "eos": vocabulary.get("add_eos_token", False)}
    ids = {name: vocabulary.named(name) for name, wants in wanted.items() if wants}
    ends = {name: i for name, i in ids.items() if i is not None}
    if not ends:
        return
    tokens = {name: tokenizer.id_to_token(i) for name, i in ends.items()}
    parts = [tokens.get("bos"), "$A", tokens.get("eos")]
    single = [part for part in parts if part is not None]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=single + [f"{part}:1" if part != "$A" else "$B:1" for part in single],
        special_tokens=[(tokens[name], i) for name, i in ends.items()],
    )


def _config(vocabulary: Vocabulary) -> dict[str, Any]:
    """The part of tokenizer_config.json that chat templates and the runtime read."""
    ids = {key: vocabulary.named(name) for key, name in NAMED.items()}
    config: dict[str, Any] = {key: vocabulary.tokens[i] for key, i in ids.items() if i is not None}
    default = vocabulary.get("model") == "llama" or _adds_bos(vocabulary.get("pre"))
    return {**config, "add_bos_token": bool(vocabulary.get("add_bos_token", default))}


def _adds_bos(pre: Any) -> bool:
    return pre in WORD_SPLITS and WORD_SPLITS[pre].add_bos
