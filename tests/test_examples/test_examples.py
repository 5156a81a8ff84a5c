"""The programs in examples/ give the tokens of the engine."""

import shutil
import subprocess
from pathlib import Path

import pytest

import runtime

ROOT = Path(__file__).parents[2]
JAVASCRIPT = ROOT / "examples" / "javascript"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (JAVASCRIPT / "node_modules").is_dir(), reason="`make examples` installs onnxruntime-node")
@pytest.mark.parametrize("prompt", [[5], [5, 6, 7], list(range(3, 40))])
def test_javascript_gives_the_engine_s_tokens(tiny_bundle, prompt):
    with runtime.LLM(tiny_bundle) as llm:
        expected = llm.generate(prompt, max_tokens=12, temperature=0.0).token_ids
    command = ["node", "generate.mjs", str(tiny_bundle), "12", ",".join(map(str, prompt))]
    done = subprocess.run(command, cwd=JAVASCRIPT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert tuple(map(int, done.stdout.split(","))) == expected
