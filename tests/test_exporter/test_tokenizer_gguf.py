"""Tokenizers rebuilt from GGUF metadata against Hugging Face's own, on the same vocabulary.

ONNXLM_FUZZ=10000 compares that many strings instead of the default 200.
"""

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from exporter.tokenizer.gguf import gguf_tokenizer_files
from exporter.tokenizer.splits import REFUSED, SENTENCEPIECE, WORD_SPLITS
from runtime.errors import CheckpointError, UnsupportedError

COUNT = int(os.environ.get("ONNXLM_FUZZ", "200"))
CORPUS = (
    "The quick brown fox doesn't jump over 12345 lazy dogs; it's 3.14 metres, isn't it?\n\n  def f(x):\n        return"
    " x+1\t# ok\r\n Größe naïve café — «Привет, мир» 你好，世界！ こんにちは 한국어 नमस्ते مرحبا 😀👍🏽 ١٢٣ ½ ²\n"
    "WE'LL HELLO HelloWorld camelCase snake_case http://x.y/z?q=1&r=2 ... !!! ((())) {}[] <tag/> A1B2C3 100,000.00  \n"
)
SNIPPETS = [
    "'s", "'LL", "'Re", " don't", "12", "1234567", " 9", "  7", "\n\n", " \n ", "\r\n", "\t", "   ", "é", "e\u0301",
    "\u212b", "नि", "한", "\u1112\u1161\u11ab", "世界", "こ", "Привет", "²", "½", "١٢", "😀", "👍🏽", "\u200d",
    "\u00a0", "A", "ﬁ", "aB", "ABc", "_", "/", "://", "!x", "#Tag", "<|end|>", "<x>", "<s>", "▁", "▁▁", "\x00",
    "\ufeff", "ǅ", "ʰ", "𝐀", "\u3000",
]  # fmt: skip


def strings(seed: int) -> list[str]:
    """Random text of awkward pieces, printable ASCII and any code point."""
    rng = random.Random(seed)
    planes = [(0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x2000), (0x2000, 0xD800), (0xE000, 0x30000)]

    def piece() -> str:
        return rng.choice(SNIPPETS) if rng.random() < 0.6 else chr(rng.randrange(*rng.choice(planes)))

    return ["".join(piece() for _ in range(rng.randrange(1, 30))) for _ in range(COUNT)]


@pytest.fixture(scope="module")
def byte_level() -> dict[str, Any]:
    """Metadata of a byte-level vocabulary whose merges cross every border between words, so that each split shows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=alphabet, show_progress=False, max_token_length=6
    )
    tokenizer.train_from_iterator([CORPUS[i:] for i in range(0, len(CORPUS), 7)] * 2, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def build(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_buffer(gguf_tokenizer_files(metadata, "x.gguf")["tokenizer.json"])


def from_class(name: str) -> Callable[[dict[str, int], list[tuple[str, str]]], Tokenizer]:
    def make(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
        import transformers

        kind = getattr(transformers, name)
        tokens = dict.fromkeys(["bos_token", "unk_token", "pad_token"], "<s>") | {"eos_token": "<|end|>"}
        return kind(vocab=vocab, merges=merges, **tokens).backend_tokenizer

    return make


def from_parts(
    *steps: Any, ignore_merges: bool = False
) -> Callable[[dict[str, int], list[tuple[str, str]]], Tokenizer]:
    def make(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
        tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
        return tokenizer

    return make


def gguf_split(pre: str) -> Any:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    return split(GGUF_PRE_TOKENIZER_SPLITS[pre])


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)
HAN = split("[一-龥ࠀ-一가-퟿]+")
CASED = (  # escaped where normalisation would change a character
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    "\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-"
    "ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
BLOOM = split(" ?[^(\\s|[.,!?…。，、।۔،])]+")
# The families' own tokenizers: a transformers class, or the pre_tokenizer of their tokenizer.json.
REFERENCES = {
    "gpt-2": from_class("GPT2Tokenizer"),
    "phi-2": from_class("CodeGenTokenizer"),
    "olmo": from_class("GPTNeoXTokenizer"),
    "mpt": from_class("GPTNeoXTokenizer"),
    "command-r": from_class("CohereTokenizer"),
    "qwen2": from_class("Qwen2Tokenizer"),
    "qwen35": from_class("Qwen3_5Tokenizer"),
    "smollm": from_parts(DIGITS, WORDS),
    "starcoder": from_parts(DIGITS, WORDS),
    "llama-bpe": from_parts(gguf_split("llama-bpe"), BYTES, ignore_merges=True),
    "dbrx": from_parts(gguf_split("dbrx"), BYTES),
    "tekken": from_parts(gguf_split("tekken"), BYTES, ignore_merges=True),
    "gpt-4o": from_parts(gguf_split("gpt-4o"), BYTES),
    "granite-embed-multi-97m": from_parts(gguf_split("gpt-4o"), BYTES, ignore_merges=True),
    "glm4": from_parts(gguf_split("dbrx"), BYTES, ignore_merges=True),
    "chameleon": from_parts(
        split("<sentinel:[0-9]+>"),
        split("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
        split("([\t\n]|    |  )"),
        DIGITS,
        split(r"[\p{P}!-/:-@\[-`{-~]"),
        WORDS,
    ),
    "megrez": from_parts(gguf_split("megrez"), BYTES),
    "deepseek-v3": from_parts(
        split(r"\p{N}{1,3}"),
        split("[一-龥぀-ゟ゠-ヿ]+"),
        split(
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        BYTES,
    ),
    "deepseek-coder": from_parts(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), HAN, DIGITS, BYTES),
    "deepseek-llm": from_parts(
        split("[\r\n]"),
        split(f"\\s?[{CASED}]+"),
        split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        split(r"\s+$"),
        HAN,
        pre_tokenizers.Digits(individual_digits=False),
        BYTES,
    ),
    "bloom": from_parts(BLOOM, BYTES),
    "viking": from_parts(BLOOM, DIGITS, BYTES),
    "seed-coder": from_parts(
        split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        BYTES,
    ),
    "falcon": from_parts(
        pre_tokenizers.Punctuation("contiguous"),
        WORDS,
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ),
}


@pytest.mark.parametrize("pre", REFERENCES)
def test_ids_of_any_text(byte_level: dict[str, Any], pre: str):
    vocab = {token: i for i, token in enumerate(byte_level["tokenizer.ggml.tokens"])}
    theirs = REFERENCES[pre](vocab, [tuple(merge.split(" ")) for merge in byte_level["tokenizer.ggml.merges"]])
    theirs.add_special_tokens(["<s>", "<|end|>"])
    ours = build(byte_level | {"tokenizer.ggml.pre": pre})
    for text in strings(seed=len(pre)):
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False).ids, (
            text
        )


# What llama.cpp compares tokenizer.ggml.pre with, in src/llama-vocab.cpp of its build 0.3.36 for Python.
LLAMA_CPP = """
    a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r dbrx
    deepseek-coder deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe exaone4 f2llmv2 falcon
    falcon-h1 falcon3 gemma4 gigachat glm4 glm5 gpt-2 gpt-4o gpt3-finnish granite-docling
    granite-embed-multi-311m granite-embed-multi-97m grok-2 hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de
    jina-es jina-v1-en jina-v2-code jina-v2-de jina-v2-es jina-v5-nano joyai-llm kanana2 kimi-k2 kormo laguna
    lfm2 llada-moe llama-bpe llama-v3 llama3 llama4 megrez mellum mellum2 midm-2.0 minerva-7b minicpm5
    minimax-m2 modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact roberta-bpe sarvam-moe
    seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe talkie tekken tiny_aya
    trillion ufakzeka viking whitespace youtu
""".split()  # noqa: SIM905


def test_every_name_of_llama_cpp_is_known_or_refused_with_a_reason(byte_level: dict[str, Any]):
    """`ONNXLM_LLAMA_CPP=llama-vocab.cpp` compares with a newer list."""
    source = os.environ.get("ONNXLM_LLAMA_CPP")
    names = re.findall(r'tokenizer_pre == "([^"]+)"', Path(source).read_text()) if source else LLAMA_CPP
    assert set(names) <= {*WORD_SPLITS, *SENTENCEPIECE, *REFUSED}
    for name, reason in REFUSED.items():
        with pytest.raises(UnsupportedError, match=re.escape(f"tokenizer.ggml.pre is {name!r}: {reason}")):
            build(byte_level | {"tokenizer.ggml.pre": name})


@pytest.mark.parametrize("pre", sorted(SENTENCEPIECE))
def test_spaces_of_files_that_only_call_themselves_byte_level(pre: str):
    """▁ for spaces, bytes by name, merges across words, and bos only where the file says so."""
    tokens = ["<s>", "a", "b", "▁", "▁a", "▁a▁b", "\n", "\n\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * 7 + [6] * 256, "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.merges": ["▁ a", "\n \n"],
    }  # fmt: skip
    tokenizer = build(metadata)
    assert tokenizer.encode("b a\n\né").tokens == ["b", "▁a", "\n\n", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode(" a  b").ids) == " a  b"
    assert build(metadata | {"tokenizer.ggml.add_bos_token": True}).encode("a").tokens == ["<s>", "a"]


def test_every_type_is_split_like_one_with_a_reference():
    assert set(WORD_SPLITS.values()) == {WORD_SPLITS[pre] for pre in (*REFERENCES, *SPLITS)}


@pytest.mark.parametrize("pre", sorted(WORD_SPLITS))
def test_any_text_comes_back(byte_level: dict[str, Any], pre: str):
    tokenizer = build(byte_level | {"tokenizer.ggml.pre": pre})
    form = normalizers.NFC().normalize_str if WORD_SPLITS[pre].nfc else str
    for text in strings(seed=1)[:50]:
        assert tokenizer.decode(
            tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False
        ) == form(text)


AWKWARD = "Don't\n\n sum 1234 ²x 世界あ한 !ab#  ΣΑ𝐀."
SPLITS = {
    "deepseek-v3": "Don|'t|\n\n| sum| |123|4| |²|x| |世界あ|한| !|ab|#| | ΣΑ𝐀|.",
    "deepseek-coder": "Don|'|t|\n|\n| sum| |1|2|3|4| |²|x| |世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "deepseek-llm": "Don|'|t|\n|\n| sum| |1234| |²|x| |世界あ한| !|ab|#| | ΣΑ|𝐀|.",
    "bloom": "Don't|\n\n| sum| 1234| ²x| 世界あ한| !|ab#| | ΣΑ𝐀|.",
    "viking": "Don't|\n\n| sum| |1|2|3|4| |²|x| 世界あ한| !|ab#| | ΣΑ𝐀|.",
    "seed-coder": "Don|'t|\n\n| sum| |1|2|3|4| |²|x| 世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "kimi-k2": "Don't|\n\n| sum| |123|4| |²|x| |世界|あ한| !|ab|#| | ΣΑ𝐀|.",
    "youtu": "Don't|\n\n| sum| |1|2|3|4| |²|x| |世界あ|한| !|ab|#| | ΣΑ𝐀|.",
    "tiny_aya": "Don't|\n\n| sum| |1|234| |²|x| 世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "superbpe": "Don't\n\n sum |1|234| |²|x 世界あ한 !ab#  ΣΑ𝐀.",
    "jais-2": "Don|'t|\n\n| sum| |123|4| |²|x| 世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "exaone-moe": "Don|'t|\n\n| sum| |1|2|3|4| |²|x 世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "minicpm5": "Don|'t|\n\n| sum| |123|4| |²|x| 世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "laguna": "Don|'t|\n\n| sum| |1|2|3|4| |²|x| 世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "bailingmoe": "Don|'t|\n\n| sum| |1|2|3|4| |²|x| 世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "ufakzeka": "Don|'t|\n\n| sum| |1|2|3|4| |²|x| 世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "spark2_5": "Don|'t|\n|\n| sum| |1|2|3|4| |²|x| |世界あ|한| !|ab|#| | ΣΑ𝐀|.",
    "afmoe": "Don|'t|\n\n| sum| |1|234| |²|x| |世界あ한| !|ab|#| | ΣΑ𝐀|.",
    "chameleon": "Don|'|t|\n|\n| sum| |1|2|3|4| |²|x| 世界あ한| |!|ab|#|  |ΣΑ𝐀|.",
    "stablelm2": "Don|'t|\n\n| sum| |1|2|3|4| |²|x| 世界あ한| !|ab|#| | ΣΑ𝐀|.",
}


@pytest.mark.parametrize("pre", SPLITS)
def test_splits_are_pinned(byte_level: dict[str, Any], pre: str):
    """Where the words end, in a sentence that every pattern cuts another way."""
    split = build(byte_level | {"tokenizer.ggml.pre": pre}).pre_tokenizer.pre_tokenize_str(AWKWARD)
    assert "|".join(AWKWARD[start:stop] for _, (start, stop) in split) == SPLITS[pre]


def test_merges_are_ignored_for_whole_words_where_the_model_does(byte_level: dict[str, Any]):
    tokens = [*byte_level["tokenizer.ggml.tokens"], "Zqxj"]
    metadata = byte_level | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)}
    whole = build(metadata | {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False})
    assert whole.encode("Zqxj").tokens == ["Zqxj"]
    assert len(build(metadata | {"tokenizer.ggml.pre": "qwen2"}).encode("Zqxj").tokens) > 1


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"pre": "gpt-2"}, ["a"]),
        ({"pre": "llama-bpe"}, ["<s>", "a"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["a"]),
        ({"pre": "gpt-2", "add_bos_token": True, "add_eos_token": True}, ["<s>", "a", "<|end|>"]),
        ({"pre": "gpt-2", "add_bos_token": True, "bos_token_id": 10**6}, ["a"]),
    ],
)
def test_ends_are_added_as_the_file_wants(byte_level: dict[str, Any], metadata: dict[str, Any], expected: list[str]):
    tokenizer = build(byte_level | {f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
    assert tokenizer.encode("a").tokens == expected
    assert tokenizer.encode("a", add_special_tokens=False).tokens == ["a"]


def test_added_tokens_are_matched_whole(byte_level: dict[str, Any]):
    """Control tags are special, user-defined tokens are plain text, and text mislabelled as control is ordinary."""
    count = len(byte_level["tokenizer.ggml.tokens"])
    tokens = [*byte_level["tokenizer.ggml.tokens"], "<｜tag▁x｜>", "<think>", "    ", "Größe Ⅷ"]
    kinds = [*byte_level["tokenizer.ggml.token_type"], 3, 4, 4, 3]
    changes = {"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    tokenizer = build(byte_level | changes)
    ids = tokenizer.encode("a<｜tag▁x｜><think>    Größe Ⅷ").ids
    assert ids[1:4] == [count, count + 1, count + 2]
    assert count + 3 not in ids
    assert tokenizer.decode(ids) == "a<think>    Größe Ⅷ"
    assert tokenizer.get_vocab_size() == count + 4


def test_files_beside_the_tokenizer(byte_level: dict[str, Any]):
    files = gguf_tokenizer_files(
        byte_level | {"tokenizer.ggml.pre": "gpt-2", "tokenizer.chat_template": "{{ x }}"}, "x"
    )
    assert json.loads(files["tokenizer_config.json"]) == {
        "bos_token": "<s>", "eos_token": "<|end|>", "add_bos_token": False,
    }  # fmt: skip
    assert files["chat_template.jinja"] == b"{{ x }}"


def test_a_tokenizer_json_in_the_metadata_is_taken_as_it_is(byte_level: dict[str, Any]):
    files = gguf_tokenizer_files(byte_level | {"tokenizer.huggingface.json": '{"version": "1.0"}'}, "x")
    assert files["tokenizer.json"] == b'{"version": "1.0"}'


def test_a_file_without_tokens_is_refused():
    with pytest.raises(CheckpointError, match=r"x.gguf: metadata tokenizer.ggml.tokens is missing"):
        gguf_tokenizer_files({}, "x.gguf")
