import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as HuggingFaceTokenizer

from runtime.errors import BundleError, RequestError
from runtime.text.detokenizer import Detokenizer
from runtime.text.stop_strings import StopStrings
from runtime.text.tokenizer import Tokenizer

TEXTS = [
    "Hello, world",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumb",
    "世界は広い。你好，世界！",
    "é = e\u0301, ﷽, \u200d, Ω≈ç√",
    "a\ufffdb\ufffd",
    "  leading\n\n\ttabs  ",
    "नमस्ते दुनिया",
]
SPECIAL = 300


def byte_level():
    """Ids 0–255 are the bytes; 256 and 257 join the halves of a character; 300 is special."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    by_byte = sorted(letters, key=lambda letter: _byte_of()[letter])
    vocab = {letter: i for i, letter in enumerate(by_byte)}
    merges = [(by_byte[0xF0], by_byte[0x9F]), (by_byte[0x91], by_byte[0xA9])]
    vocab |= {left + right: 256 + i for i, (left, right) in enumerate(merges)}
    vocab |= {f"filler{i}": i for i in range(258, 300)}
    tokenizer = HuggingFaceTokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", SPECIAL)])
    return tokenizer


def byte_fallback():
    """As sentencepiece exports it: words with ▁, everything else as byte tokens."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocab |= {token: 257 + i for i, token in enumerate(["▁", "▁a", "b", "▁hello", "c"])}
    tokenizer = HuggingFaceTokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _byte_of():
    """The byte that each letter of the byte-level alphabet stands for, as GPT-2 defined it."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    built = {"byte_level": byte_level(), "byte_fallback": byte_fallback()}
    for name, tokenizer in built.items():
        tokenizer.save(str(folder / name))
    return {name: Tokenizer(folder / name) for name in built}


@pytest.fixture(scope="module")
def tokenizer(tokenizers):
    return tokenizers["byte_level"]


def streamed(tokenizer, ids, **options):
    detokenizer = Detokenizer(tokenizer, **options)
    return [detokenizer.push(i) for i in ids] + [detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_encode_and_decode_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids[0] == SPECIAL
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_added_and_skipped_on_request(tokenizer):
    assert tokenizer.encode("a", add_special_tokens=False) == [ord("a")]
    assert tokenizer.decode([SPECIAL, ord("a")], skip_special=False) == "<s>a"
    assert tokenizer.special == {SPECIAL}


def test_more_special_ids_may_be_named(tokenizer, tmp_path):
    byte_level().save(str(tmp_path / "t"))
    assert Tokenizer(tmp_path / "t", special=[ord("a")]).decode(b"abc") == "bc"


def test_truncation_and_padding_of_the_file_are_off(tmp_path):
    inner = byte_level()
    inner.enable_truncation(3)
    inner.enable_padding(length=8)
    inner.save(str(tmp_path / "t"))
    assert len(Tokenizer(tmp_path / "t").encode("abcde")) == 6


def test_names_of_tokens(tokenizer):
    assert (tokenizer.token(SPECIAL), tokenizer.token(9999)) == ("<s>", "")
    assert (tokenizer.id_of("<s>"), tokenizer.id_of("nothing")) == (SPECIAL, None)
    assert tokenizer.vocab_size == 301


def test_other_threads_go_on_while_a_long_text_is_encoded_or_decoded(tokenizer):
    """A count, not a time: a call that kept the interpreter to itself would let the other thread count to about one."""
    text = "abcdefghi " * 20_000
    for work in (lambda: tokenizer.encode(text), lambda: tokenizer.decode([97] * 300_000)):
        thread = threading.Thread(target=work)
        thread.start()
        count = 0
        while thread.is_alive():
            time.sleep(0.0005)
            count += 1
        assert count > 20


@pytest.mark.parametrize("text", ["\ud800", 5, None, b"a", ("a", "b"), ["a", "b"]])
def test_what_is_not_text_is_refused(tokenizer, text):
    with pytest.raises(RequestError, match="not a text"):
        tokenizer.encode(text)


@pytest.mark.parametrize("ids", [[-1], [2**40], ["a"], [1.5]])
def test_what_is_not_an_id_is_refused(tokenizer, ids):
    with pytest.raises(RequestError, match="from 0 to 300"):
        tokenizer.decode(ids)


@pytest.mark.parametrize("content", [b"{}", b"\xff\x00", b""])
def test_a_broken_file_is_a_bundle_error(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(BundleError, match="not a tokenizer"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_file_is_a_bundle_error(tmp_path):
    with pytest.raises(BundleError, match="cannot be read"):
        Tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_streamed_equals_whole_for_any_text(tokenizers, kind, text):
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(text * 20)
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert max(map(len, pieces)) < 20


@given(st.lists(st.integers(0, 257) | st.sampled_from([0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xFF, SPECIAL]), max_size=200))
def test_streamed_equals_whole_for_any_bytes(tokenizers, ids):
    pieces = streamed(tokenizers["byte_level"], ids)
    assert "".join(pieces) == tokenizers["byte_level"].decode(ids)


def test_broken_bytes_without_end_are_shown_in_time(tokenizer):
    ids = random.Random(0).choices([0x80, 0xF0, 0xFF], k=500)
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert len("".join(pieces[:100])) > 80


def test_byte_tokens_recover_after_a_broken_run(tokenizers):
    tokenizer = tokenizers["byte_fallback"]
    broken = [1 + byte for byte in "世".encode() + b"\xff"]
    pieces = streamed(tokenizer, [*broken, 258, 259])
    assert "".join(pieces).endswith("\ufffd ab")
    assert pieces[2] == "世"


def test_an_unfinished_character_is_held_then_flushed(tokenizer):
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(i) for i in "é".encode()] == ["", "é"]
    assert detokenizer.push(0xF0) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push(ord("a")) == "a"


def test_special_tokens_show_only_if_kept(tokenizer):
    ids = [ord("a"), SPECIAL, ord("b")]
    assert streamed(tokenizer, ids) == ["a", "", "b", ""]
    assert streamed(tokenizer, ids, keep=[SPECIAL]) == ["a", "<s>", "b", ""]


def watched(stops, pieces):
    """All the text that is shown, and the stop string that was found."""
    stopper, shown = StopStrings(stops), ""
    for piece in pieces:
        result = stopper.push(piece)
        shown += result.text
        if result.stop is not None:
            return shown, result.stop
    return shown + stopper.flush(), None


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "stop"),
    [
        (["STOP"], ["hello ", "STOP", "x"], "hello ", "STOP"),
        (["STOP"], ["hello S", "T", "OP and more"], "hello ", "STOP"),
        (["STOP"], ["STOP"], "", "STOP"),
        (["STOP"], ["STO"], "STO", None),
        (["STOP"], ["STSTOP"], "ST", "STOP"),
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),
        (["abab"], ["aba", "cab", "abz"], "abac", "abab"),
        (["ab", "abc"], ["xabc"], "x", "ab"),
        (["b", "abz"], ["xabz"], "xa", "b"),
        (["cd", "bcd"], ["abcd"], "a", "bcd"),
        (["\n\n"], ["a\n", "b\n", "\nc"], "a\nb", "\n\n"),
        (["👩‍👩"], ["x👩", "\u200d", "👩"], "x", "👩‍👩"),
        ([], ["a", "b"], "ab", None),
    ],
)
def test_stop_strings(stops, pieces, shown, stop):
    assert watched(stops, pieces) == (shown, stop)


def test_only_what_may_become_a_stop_is_held():
    stopper = StopStrings(["\n\nUser:"])
    assert stopper.push("line\n").text == "line"
    assert stopper.push("more").text == "\nmore"


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.text("ab", max_size=3), max_size=12))
def test_pieces_do_not_matter(stops, pieces):
    shown, stop = watched(stops, pieces)
    assert (shown, stop) == watched(stops, "".join(pieces))
    assert not any(found in shown for found in stops)
    assert stop is not None or shown == "".join(pieces)


@pytest.mark.parametrize("kind", ["BPE", "Unigram", "WordPiece"])
def test_a_tokenizer_without_its_last_tokens_spells_them_with_others(tmp_path, kind):
    words = ["a", "b", "c", "ab", "abc"]
    vocab = {word: i for i, word in enumerate(words)}
    model = {
        "BPE": lambda: models.BPE(vocab, [("a", "b"), ("ab", "c")]),
        "Unigram": lambda: models.Unigram([(word, -len(words) + i * 1.0) for i, word in enumerate(words)], 0, False),
        "WordPiece": lambda: models.WordPiece({**vocab, "##b": 5, "##c": 6}, unk_token="a"),
    }[kind]()
    HuggingFaceTokenizer(model).save(str(tmp_path / "t.json"))
    tokenizer = Tokenizer(tmp_path / "t.json")
    cut = HuggingFaceTokenizer.from_str(tokenizer.to_json(below=4))
    assert tokenizer.encode("abc") == [4]
    assert cut.get_vocab_size() == 4
    assert cut.encode("abc").ids == ([3, 2] if kind != "WordPiece" else [0])
    assert tokenizer.to_json(below=99) == tokenizer.to_json()
