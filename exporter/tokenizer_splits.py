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
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CJK = "[一-龥ࠀ-一가-퟿]+"
_DIGIT, _DIGITS = r"\p{N}", r"\p{N}+"
# deepseek-llm lists its letters one range at a time: cased letters, without the mathematical alphabets.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼι"
    "ῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)


@dataclass(frozen=True)
class WordSplit:
    """How text is cut.

    Args:
        patterns: applied in turn, each to the pieces that the one before left.
        ignore_merges: a word that is a token is taken whole, whatever the merges say.
        add_bos: the text begins with the bos token, unless the file says otherwise.
        nfc: text is normalised to NFC first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_GROUPS: tuple[tuple[WordSplit, str], ...] = (
    (WordSplit((_GPT2,)), "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 a.x-4.0 mellum gigachat"),
    (WordSplit((_DIGIT, _GPT2)), "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2"),
    (
        WordSplit((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (WordSplit((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (WordSplit((_QWEN2,), nfc=True), "qwen2 deepseek-r1-qwen"),
    (WordSplit((_QWEN2,)), "stablelm2 hunyuan solar-open megrez kormo grok-2"),
    (WordSplit((_QWEN35,), nfc=True), "qwen35"),
    (WordSplit((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (WordSplit((_GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (WordSplit((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"),
    (WordSplit((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)), "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (WordSplit(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT)), "deepseek-coder"),
    (
        WordSplit(("[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, _DIGITS)),
        "deepseek-llm",
    ),
    (WordSplit((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (WordSplit((_BLOOM, _DIGIT)), "viking"),
    (WordSplit((_SEED,)), "seed-coder"),
)

WORD_SPLITS: dict[str, WordSplit] = {name: split for split, names in _GROUPS for name in names.split()}
