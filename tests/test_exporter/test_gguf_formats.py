"""One model in many GGUF block formats: the bundle is as surprised by a text as transformers over the same weights."""

import runpy
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "gguf_formats.py"


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q5_0", "Q4_0"])
def test_perplexity_is_that_of_the_reference(make_gguf, tmp_path, kind):
    _, source = make_gguf("F32")
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    # exact: a random model is all noise to 8-bit activations, unlike a real one.
    line = runpy.run_path(str(BENCH))["measure"](source, kind, text, 200, tmp_path, exact=True)
    assert abs(line["difference_percent"]) < 0.01
    assert line["perplexity"] > 10
