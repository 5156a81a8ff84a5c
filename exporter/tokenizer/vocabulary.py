"""The tokens of a GGUF file and what all kinds of tokenizers do with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from runtime.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Values of tokenizer.ggml.token_type; 5 is unused, 6 a byte.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
# Hugging Face's name of a token with a role, and GGUF's.
ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


@dataclass(frozen=True)
class Vocabulary:
    """The tokens by id, their types, and the metadata they came with. `where` names the file in messages."""

    where: str
    tokens: Sequence[str]
    kinds: Sequence[int]
    metadata: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """Metadata `tokenizer.ggml.key`."""
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def role(self, name: str) -> int | None:
        """Id of "bos", "eos", "unknown" or "padding", where the file has it."""
        value = self.get(f"{name}_token_id")
        return value if type(value) is int and 0 <= value < len(self.tokens) else None

    @cached_property
    def added(self) -> Sequence[int]:
        """Ids of tokens that are matched whole in the text, before anything is split or merged."""
        roles = {self.role(name) for name in ROLES.values()}
        return [i for i, kind in enumerate(self.kinds) if kind != NORMAL and self._is_added(i, kind, roles)]

    def _is_added(self, i: int, kind: int, roles: set[int | None]) -> bool:
        if kind == CONTROL:
            # Converters label some ordinary tokens as control; those are plain text outside the byte alphabet.
            text = self.tokens[i]
            tag = (text[0], text[-1]) in (("<", ">"), ("[", "]"))
            return tag or i in roles or WRITTEN_BYTES.issuperset(text)
        return kind in (UNKNOWN, USER_DEFINED)

    @property
    def merges(self) -> list[tuple[str, str]] | None:
        """The merges of the file, first the most urgent; None where it has none."""
        stored = self.get("merges")
        return None if stored is None else [self._merge(text) for text in stored]

    def _merge(self, text: str) -> tuple[str, str]:
        left, _, right = text.partition(" ")
        if not left or not right:
            raise CheckpointError(f"{self.where}: tokenizer.ggml.merges holds {text!r}, not two tokens and a space.")
        return left, right


def read_vocabulary(metadata: Mapping[str, Any], where: str) -> Vocabulary:
    """Check and collect the tokens of a file; raises CheckpointError where they are missing or contradictory."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError(f"{where}: metadata tokenizer.ggml.tokens is missing; this file has no tokenizer.")
    texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
    if len(set(texts)) != len(texts):
        first = {text: i for i, text in reversed(list(enumerate(texts)))}
        twice = next(text for i, text in enumerate(texts) if first[text] != i)
        raise CheckpointError(f"{where}: token {twice!r} appears twice in tokenizer.ggml.tokens.")
    stored = metadata.get("tokenizer.ggml.token_type")
    kinds = [NORMAL] * len(texts) if stored is None else [int(kind) for kind in stored]
    if len(kinds) != len(texts):
        raise CheckpointError(f"{where}: {len(kinds)} entries in tokenizer.ggml.token_type for {len(texts)} tokens.")
    return Vocabulary(where, texts, kinds, metadata)


@cache
def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


WRITTEN_BYTES = frozenset(byte_alphabet().values())


def add_tokens(tokenizer: "Tokenizer", vocabulary: Vocabulary, texts: Sequence[str]) -> None:
    """Register the tokens that are matched whole: control ones are special, user-defined ones are plain text."""
    from tokenizers import AddedToken

    user = [i for i in vocabulary.added if vocabulary.kinds[i] == USER_DEFINED]
    special = [i for i in vocabulary.added if vocabulary.kinds[i] != USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(texts[i], normalized=False, special=True) for i in special])
    tokenizer.add_tokens([AddedToken(texts[i], normalized=False, special=False) for i in user])


def add_ends(tokenizer: "Tokenizer", vocabulary: Vocabulary, bos: bool) -> None:
    """Let encoding put bos and eos around the text where the file wants that; `bos` is the default of its kind."""
    from tokenizers import processors

    wanted = {"bos": vocabulary.get("add_bos_token", bos), "eos": vocabulary.get("add_eos_token", False)}
    ids = {name: vocabulary.role(name) for name, wants in wanted.items() if wants}
    ends = {name: (tokenizer.id_to_token(i), i) for name, i in ids.items() if i is not None}
    if not ends:
        return
    before = [ends["bos"][0]] if "bos" in ends else []
    after = [ends["eos"][0]] if "eos" in ends else []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{text}:1" for text in before), "$B:1", *(f"{text}:1" for text in after)],
        special_tokens=list(ends.values()),
    )
