"""Answers of every format, whole and in pieces, are parted into the same text, thoughts and calls."""

import json

import pytest
from chat_answers import ANSWERS
from chat_cases import NAMES, template_of

from runtime.chat.formats.reader import AnswerReader

TEXT = {"type": "string"}
WHEN = {"type": "object", "properties": {"day": TEXT, "hours": {"type": "array", "items": {"type": "number"}}}}
BOOK = {"guests": {"type": "integer"}, "when": WHEN, "quiet": {"type": "boolean"}, "note": TEXT}
TOOLS = {
    "get_forecast": {"type": "object", "properties": {"place": TEXT, "days": {"type": "integer"}}},
    "book.table-2": {"type": "object", "properties": BOOK},
    "clock": {},
}
OPENED = {"apriel_1_5", "ernie_4_5_thinking", "nemotron_nano_v2", "qwen3_thinking"}  # the prompts open a thought


@pytest.mark.parametrize("row", range(len(ANSWERS)), ids=[f"{name}-{i}" for i, (name, *_) in enumerate(ANSWERS)])
def test_an_answer_is_parted(row):
    name, answer, text, thoughts, calls = ANSWERS[row]
    for size in (1, 3, 7, 100_000):
        reader = AnswerReader(template_of(name).format, TOOLS, in_thought=name in OPENED)
        parts = [reader.push(answer[i : i + size]) for i in range(0, len(answer), size)] + [reader.finish()]
        found = [(call.name, json.loads(call.arguments)) for part in parts for call in part.calls]
        assert found == calls
        assert "".join(part.content for part in parts).strip() == text
        assert "".join(part.reasoning for part in parts) == thoughts


def test_every_format_has_answers():
    assert {name for name, *_ in ANSWERS} >= set(NAMES) - {"qwen2_5_coder"}
