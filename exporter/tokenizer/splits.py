"""How byte-level tokenizers cut text into words before merging, by the names of GGUF files (`tokenizer.ggml.pre`).

The expressions are those of the models' own tokenizer.json.
"""

from dataclasses import dataclass

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}[\r\n]*|{_SPACES}"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}|{_PUNCTUATION}[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_PUNCTUATION}[\r\n/]*|{_SPACES}"
)
_SEED = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_NO_HAN_UPPER, _NO_HAN_LOWER = (part[:-1] + r"&&[^\p{Han}]]" for part in (_UPPER, _LOWER))
_KIMI = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_NO_HAN_UPPER}*{_NO_HAN_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_NO_HAN_UPPER}+{_NO_HAN_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_PUNCTUATION}[\r\n]*|{_SPACES}"
)
_YOUTU = _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}")
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_JAIS2 = _LLAMA3.replace(
    r"\s+(?!\S)|\s+", "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"|{_PUNCTUATION}[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_THOUSANDS = r"\d{1,3}(?=(?:\d{3})*\b)"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DIGIT, _DIGITS = r"\p{N}", r"\p{N}+"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_SYMBOLS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"


def _letters(ranges: str) -> str:
    ends = [[chr(int(end, 16)) for end in part.split("-")] for part in ranges.split()]
    return "[" + "".join("-".join(pair) for pair in ends) + "]"


# deepseek-llm lists its letters one range at a time: most cased letters, without the mathematical alphabets.
_CASED = _letters(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
    "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
    "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F "
    "104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)


# Scripts without spaces, as llama.cpp has them for AFMoE, with the first compatibility character in its normal form.
_UNSPACED = (
    _letters(
        "4E00-9FFF 3400-4DBF 8C48-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF 1780-17FF 1000-109F"
        " AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
    )
    + "+"
)


@dataclass(frozen=True)
class WordSplit:
    """How text is cut.

    Args:
        patterns: applied in turn, each to the pieces that the one before left.
        byte_patterns: the same, after the pieces were spelled in the byte alphabet.
        punctuation: runs of punctuation are cut off before anything else.
        ignore_merges: a word that is a token is taken whole, whatever the merges say.
        add_bos: the text begins with the bos token, unless the file says otherwise.
        nfc: text is normalised to NFC first.
    """

    patterns: tuple[str, ...]
    byte_patterns: tuple[str, ...] = ()
    punctuation: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_GROUPS: tuple[tuple[WordSplit, str], ...] = (
    (
        WordSplit((_GPT2,)),
        "gpt-2 phi-2 jais trillion granite-docling exaone4 a.x-4.0 mellum gigachat jina-es jina-de jina-v2-es "
        "jina-v2-de modern-bert jina-v1-en jina-v2-code roberta-bpe",
    ),
    (WordSplit((_GPT2,), nfc=True), "mpt olmo"),
    (WordSplit((_DIGIT, _GPT2)), "starcoder refact smollm codeshell exaone minerva-7b mellum2"),
    (WordSplit((_DIGIT, _GPT2), nfc=True), "command-r"),
    (
        WordSplit((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (WordSplit((_LLAMA3,)), "dbrx smaug-bpe chatglm-bpe"),
    (WordSplit((_LLAMA3,), ignore_merges=True), "glm4 glm5"),
    (WordSplit((_QWEN2,), nfc=True), "qwen2 deepseek-r1-qwen f2llmv2"),
    (WordSplit((_QWEN2,)), "stablelm2 hunyuan solar-open megrez kormo grok-2"),
    (WordSplit((_QWEN35,), nfc=True), "qwen35"),
    (WordSplit((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (WordSplit((_GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (WordSplit((_GPT4O,), ignore_merges=True), "granite-embed-multi-97m"),
    (WordSplit((_GPT2,), (_DIGITS, "[0-9][0-9][0-9]"), punctuation=True), "falcon"),
    (WordSplit((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)), "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (WordSplit(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, _DIGIT)), "deepseek-coder"),
    (
        WordSplit(("[\r\n]", rf"\s?{_CASED}+", rf"\s?{_SYMBOLS}+", r"\s+$", _HAN_HANGUL, _DIGITS)),
        "deepseek-llm",
    ),
    (WordSplit((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (WordSplit((_BLOOM, _DIGIT)), "viking"),
    (WordSplit((_SEED,)), "seed-coder"),
    (WordSplit((_KIMI,)), "kimi-k2"),
    (WordSplit((_YOUTU_SCRIPTS, _YOUTU), ignore_merges=True), "youtu"),
    (WordSplit((_THOUSANDS, _GPT4O)), "tiny_aya cohere2moe"),
    (WordSplit((_DIGITS, r"(?=(\d{3})+(?!\d))")), "superbpe"),
    (WordSplit((_JAIS2,)), "jais-2"),
    (WordSplit((_EXAONE_MOE,)), "exaone-moe"),
    (WordSplit((r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+"))), "minicpm5"),
    (WordSplit((r"[^\n]+|[\n]+", _QWEN2)), "laguna"),
    (WordSplit((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    (WordSplit((_QWEN2.removeprefix(f"{_CONTRACTIONS}|"),)), "ufakzeka"),
    (
        WordSplit((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3.replace(r"+[\r\n]*|\s*[\r\n]+", r"+|[\r\n]"), _DIGIT)),
        "spark2_5",
    ),
    (WordSplit((r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _UNSPACED, _DEEPSEEK3)), "afmoe"),
    (
        WordSplit(
            ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\t\n]|    |  ", _DIGIT, r"[\p{P}!-/:-@\[-`{-~]", _GPT2),
            add_bos=True,
        ),
        "chameleon",
    ),
)

WORD_SPLITS: dict[str, WordSplit] = {name: split for split, names in _GROUPS for name in names.split()}

# Byte-level by their tokenizer.ggml.model, and yet spelled as SentencePiece does: ▁ for spaces, bytes by name.
SENTENCEPIECE = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
# Known, and not to be rebuilt: why.
REFUSED = {
    "default": "the converter did not know the model's tokenizer, and what stands in for it gives other ids",
    "whitespace": "it is of encoders that embed text (Jina), whose words have no spaces and no bytes",
}
