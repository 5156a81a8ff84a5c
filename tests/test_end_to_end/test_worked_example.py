"""The worked example of FORMAT.md has the numbers of the real model."""

import re
from pathlib import Path

import numpy as np

from exporter.verify.numpy_graphs import NumpyRunner
from runtime.bundle.bundle import open_bundle

ROOT = Path(__file__).parents[2]


def rows_of_the_worked_example() -> list[tuple[str, list[int], dict[int, float]]]:
    text = (ROOT / "FORMAT.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (prefill|decode) \| `\[\[([\d, ]+)\]\]` .*\| (\d[^|]+) \|$", text, re.MULTILINE)
    return [
        (role, [int(i) for i in ids.split(",")], {int(i): float(x) for i, x in re.findall(r"(\d+): ([\d.]+)", tops)})
        for role, ids, tops in rows
    ]


def test_the_numbers_of_the_format_s_example(bundle):
    rows = rows_of_the_worked_example()
    assert [role for role, _, _ in rows] == ["prefill", "decode", "decode"]
    runner = NumpyRunner(bundle, open_bundle(bundle).manifest, 8)
    for role, ids, tops in rows:
        logits = runner.prefill(np.array(ids)) if role == "prefill" else runner.decode(ids[0])
        assert np.argsort(-logits)[:3].tolist() == list(tops)
        assert np.allclose(logits[list(tops)], list(tops.values()), atol=2e-2)
