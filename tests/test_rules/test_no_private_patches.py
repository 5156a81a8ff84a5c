"""Tests replace what is public only: a private name is nobody's business but its file's."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# monkeypatch.setattr(thing, "_name", …), monkeypatch.setattr("module._name", …), setattr(thing, "_name", …)
PATCH = re.compile(
    r"""setattr\(\s*(?:[^"'()]+,\s*f?["']_[a-z]|f?["'][\w.{}]*\._[a-z{])|patch(?:\.object)?\([^)]*["'][\w.]*\b_[a-z]"""
)


def test_no_private_name_is_replaced():
    others = (path for path in TESTS.rglob("*.py") if path != Path(__file__))
    found = {path.name: PATCH.findall(path.read_text(encoding="utf-8")) for path in others}
    assert {name: hits for name, hits in found.items() if hits} == {}


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ('monkeypatch.setattr(rope, "_base", wrong)', True),
        ('monkeypatch.setattr("runtime.engine._NAME", 0)'.lower(), True),
        ('monkeypatch.setattr(f"runtime.engine._{name}", 0)', True),
        ("setattr(executor, '_run', slowly)", True),
        ('monkeypatch.setattr(sys, "executable", "")', False),
        ('monkeypatch.setattr("exporter.verify.choice.available_memory", lambda: 1)', False),
    ],
)
def test_a_private_name_is_found(line, private):
    assert bool(PATCH.search(line)) is private
