"""SentencePiece tokenizers of GGUF files against transformers' own conversion of the same file.

ONNXLM_FUZZ=10000 compares that many strings instead of the default 200.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, trainers

from exporter.checkpoint.gguf.file import read_gguf
from exporter.tokenizer.gguf import gguf_tokenizer_files
from runtime.errors import CheckpointError

COUNT = int(os.environ.get("ONNXLM_FUZZ", "200"))
CORPUS = (
    "the quick brown fox, the lazy dog. Größe naïve café; Привет, мир! 你好世界  two  spaces   three\n\nlines 1234 5"
)
SNIPPETS = [
    "the ",
    " quick",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "é",
    "Größe",
    "мир",
    "世界",
    "😀",
    "12",
    "<s>",
    "</s>",
    "▁",
    ".",
    "x",
    " ",
]


def strings(seed: int) -> list[str]:
    rng = random.Random(seed)

    def piece() -> str:
        return rng.choice(SNIPPETS) if rng.random() < 0.8 else chr(rng.randrange(0x20, 0xD800))

    return ["".join(piece() for _ in range(rng.randrange(1, 20))) for _ in range(COUNT)]


def spm_metadata(architecture: str, gemma: bool = False) -> dict[str, Any]:
    """Pieces in the order of their training, as SentencePiece stores them: no merges, scores instead."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(
        [CORPUS] * 3, trainers.BpeTrainer(vocab_size=160, show_progress=False, max_token_length=8)
    )
    vocab = trained.get_vocab()
    pieces = sorted(vocab, key=vocab.__getitem__)
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] if gemma else ["<unk>", "<s>", "</s>"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [" " * len(piece) if gemma and set(piece) == {"▁"} and len(piece) > 1 else piece for piece in pieces]
    names = ("padding", "eos", "bos", "unknown") if gemma else ("unknown", "bos", "eos")
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * (len(special) + 256) + [-float(i) for i in range(len(pieces))],
        "tokenizer.ggml.token_type": [2 if t == "<unk>" else 3 for t in special] + [6] * 256 + [1] * len(pieces),
        **{f"tokenizer.ggml.{name}_token_id": i for i, name in enumerate(names)},
    }


def build(path: Path) -> Tokenizer:
    return Tokenizer.from_buffer(gguf_tokenizer_files(read_gguf(path).metadata, "x.gguf")["tokenizer.json"])


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3"])
def test_ids_of_any_text(write_gguf: Callable[..., Path], architecture: str):
    from transformers import AutoTokenizer

    ours = build(write_gguf(spm_metadata(architecture, gemma=architecture == "gemma2"), {}))
    # transformers has SentencePiece's spaces for phi3 only: its conversion of llama files loses those in front.
    path = write_gguf(
        spm_metadata("gemma2" if architecture == "gemma2" else "phi3", gemma=architecture == "gemma2"), {}
    )
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in strings(seed=len(architecture)):
        assert ours.encode(text).ids == theirs(text).input_ids, text


def test_gemma4_has_its_merges_in_the_file_and_adds_no_bos(write_gguf: Callable[..., Path]):
    from transformers import AutoTokenizer

    tokens = spm_metadata("gemma4", gemma=True)["tokenizer.ggml.tokens"]
    tokens = ["▁" * len(token) if not token.strip(" ") else token for token in tokens]
    pairs = [(token[:at], token[at:]) for token in tokens for at in range(1, len(token))]
    merges = [f"{left} {right}" for left, right in pairs if left in tokens and right in tokens]
    metadata = spm_metadata("gemma4", gemma=True) | {
        "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": True,
    }  # fmt: skip
    path = write_gguf(metadata, {})
    theirs, ours = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name), build(path)
    for text in strings(seed=4):
        assert ours.encode(text).ids == theirs(text).input_ids, text


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3"])
def test_text_comes_back(write_gguf: Callable[..., Path], architecture: str):
    tokenizer = build(write_gguf(spm_metadata(architecture, gemma=architecture == "gemma2"), {}))
    ids = tokenizer.encode("the lazy  fox\n Größe 你 😀").ids
    assert tokenizer.decode(ids) == "the lazy  fox\n Größe 你 😀"
    assert tokenizer.decode(ids, skip_special_tokens=False).startswith(("<s>", "<bos>"))


def test_spaces_in_front_are_kept_as_llama_cpp_keeps_them(write_gguf: Callable[..., Path]):
    metadata = spm_metadata("llama")
    tokens = ["<unk>", "<s>", "</s>", "<mark>", "▁", "▁Hi", "Hi", "▁x", "x"]
    tokens += [character for character in "Hi" if character not in tokens]
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))]}
    tokenizer = build(write_gguf(metadata | {"tokenizer.ggml.token_type": [2, 3, 3, 3] + [1] * (len(tokens) - 4)}, {}))
    assert tokenizer.encode(" Hi").tokens == ["<s>", "▁", "▁Hi"]  # as " Hello world" is 29871 15043 3186
    assert tokenizer.encode("x<mark>Hi").tokens == ["<s>", "▁x", "<mark>", "▁Hi"]
    assert tokenizer.encode("x<mark> Hi").tokens == ["<s>", "▁x", "<mark>", "▁", "▁Hi"]


def test_no_space_is_put_in_front_where_the_file_says_so(write_gguf: Callable[..., Path]):
    metadata = spm_metadata("llama") | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    assert build(write_gguf(metadata, {})).encode("x y").tokens == ["x", "▁", "y"]


def test_scores_must_be_complete():
    metadata = spm_metadata("llama") | {"tokenizer.ggml.scores": [0.0]}
    with pytest.raises(CheckpointError, match=r"1 entries in tokenizer.ggml.scores for \d+ tokens"):
        gguf_tokenizer_files(metadata, "x.gguf")
