"""JSON that is exactly what the type hints say, or an error that names the place."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from runtime.bundle.json_codec import MAX_DEPTH, StrictJsonError, decode, encode, loads


@dataclass(frozen=True)
class Point:
    x: float
    label: str | None = None


@dataclass(frozen=True)
class Shape:
    kind: Literal["open", "closed"]
    points: tuple[Point, ...]
    sizes: dict[str, int]


GOOD = {"kind": "open", "points": [{"x": 1, "label": "a"}, {"x": 0.5}], "sizes": {"width": 3}}


def test_what_is_read_is_written_again():
    shape = decode(Shape, GOOD)
    assert shape == Shape("open", (Point(1.0, "a"), Point(0.5)), {"width": 3})
    assert decode(Shape, encode(shape)) == shape


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": 1}, "colour: unknown key; known keys are kind, points, sizes"),
        ({"kind": "ajar"}, "kind: expected one of 'open', 'closed', got 'ajar'"),
        ({"kind": ["open"]}, "kind: expected one of"),
        ({"points": {}}, "points: expected a list"),
        ({"points": [{"x": 1}, {"x": "1"}]}, r"points\[1\].x: expected a number"),
        ({"points": [{}]}, r"points\[0\].x: missing"),
        ({"points": [{"x": True}]}, "expected a number, got True"),
        ({"points": [{"x": 1, "label": 2}]}, r"points\[0\].label: expected a string"),
        ({"sizes": {"width": 3.0}}, "sizes.width: expected an integer, got 3.0"),
        ({"sizes": {1: 2}}, "sizes: expected a string as key, got 1"),
        ({"sizes": []}, "sizes: expected an object"),
    ],
)
def test_a_misfit_is_named_by_its_path(change, words):
    with pytest.raises(StrictJsonError, match=words):
        decode(Shape, GOOD | change)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "key 'a' appears twice"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("[1e999]", "too large"),
        ("[9223372036854775808]", "does not fit 64 bits"),
        (f"[{'9' * 5000}]", "digits"),
        ('["\\ud800"]', "half a surrogate pair"),
        ('{"\\udfff": 1}', "half a surrogate pair"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested"),
        ("[" * 200_000, "nested"),
        ("\ufeff{}", "BOM"),
        ("", "Expecting value"),
    ],
)
def test_json_that_readers_disagree_on_is_refused(text, words):
    with pytest.raises(StrictJsonError, match=words):
        loads(text)


def test_the_extremes_that_are_still_json_pass():
    assert loads('[9223372036854775807, -9223372036854775808, "\\ud83d\\ude00", "\\u0000"]')[2] == "😀"
    assert loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)


@pytest.mark.timeout(10)
def test_a_late_duplicate_among_many_keys_is_found_quickly():
    keys = [f'"k{i}": 0' for i in range(200_000)] + ['"k199999": 1']
    with pytest.raises(StrictJsonError, match="'k199999' appears twice"):
        loads("{" + ",".join(keys) + "}")


def test_a_key_full_of_escape_codes_does_not_reach_the_terminal():
    with pytest.raises(StrictJsonError) as caught:
        decode(Point, {"x": 1, "\x1b[31mred": 2})
    assert "\x1b" not in str(caught.value)


def test_a_failed_union_speaks_of_its_last_option():
    value: Any = {"x": 1, "label": []}
    with pytest.raises(StrictJsonError, match="label: expected a string"):
        decode(Point, value)
