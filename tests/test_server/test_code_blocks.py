"""Each block of code in the documents runs here, on a tiny model, or says why it does not."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+```(?P<language>\w*)\n(?P<code>.*?)\n```", re.S)
BLOCKS = [
    (page.relative_to(ROOT).as_posix(), block)
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
    for block in BLOCK.finditer("\n\n" + page.read_text())
    if not block["before"].startswith("<!-- not run: ")
]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[page for page, _ in BLOCKS])
def test_a_block_runs_or_says_why_not(page, block, chat_bundle, tmp_path, monkeypatch, capsys):
    assert block["language"] == "python", f"{page}: mark what does not run: <!-- not run: REASON -->"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smol-int4").symlink_to(chat_bundle)
    exec(block["code"], {})
    assert capsys.readouterr().out.strip()


def test_the_first_programs_run():
    assert [page for page, _ in BLOCKS] == ["README.md", "docs/python.md"]
