"""Every tiny family on the CUDA provider, in both types: prefill, ragged decode, growth, prefix cache, drafts, states.

No node of a graph is left to the CPU, and nothing is copied between host and device inside it.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tiny_families import CASES, save_random

import runtime
from runtime.bundle.bundle import open_bundle
from runtime.errors import UnsupportedError
from runtime.options import EngineOptions
from runtime.ort.session import onnxruntime

TOKENS = 119  # the smallest vocabulary has 120


NOT_PAGED = {"bloom", "mpt", "falcon", "lfm2", "lfm2_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
             "granitemoehybrid"}  # fmt: skip


@pytest.fixture(params=["float16", "bfloat16", "paged"])
def bundle(request: pytest.FixtureRequest, case: Any, tmp_path: Path, make_bundle: Any) -> Path:
    pytest.importorskip("transformers")
    save_random(case, tmp_path)
    (tmp_path / "tokenizer.json").write_text(_words(case))
    if request.param != "paged":
        return make_bundle(tmp_path, target="cuda", dtype=request.param)
    try:
        return make_bundle(tmp_path, target="cuda", kv="paged")
    except UnsupportedError as error:
        assert case.model_type in NOT_PAGED
        pytest.skip(str(error))


def _words(case: Any) -> str:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {f"w{i}": i for i in range(1, case.config().get("vocab_size", TOKENS + 1))}
    return Tokenizer(WordLevel({"<unk>": 0} | words, unk_token="<unk>")).to_str()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_family(cuda: Any, bundle: Path) -> None:
    for graph in sorted(bundle.glob("*.onnx")):
        assert left_to_the_host(graph) == []
    options = EngineOptions(max_concurrency=3, prefix_cache=1 << 24, speculation=4)
    with runtime.LLM(bundle, options=options) as llm:
        ends = [generate(llm, [40], 8), generate(llm, [70, 33, 5, 70], 10), generate(llm, [73], 4)]
    assert ends == [[8], [10] * 4, [4]]
    assert not open_bundle(bundle).manifest.kv_cache.bytes_per_token % 2


def generate(llm: runtime.LLM, lengths: list[int], count: int) -> list[int]:
    """How many tokens each answer has."""
    prompts = [[(7 * i + 3) % TOKENS for i in range(length)] for length in lengths]
    answers = llm.generate(prompts, runtime.SamplingParams(max_tokens=count, ignore_eos=True, seed=1))
    return [len(answer.token_ids) for answer in answers]


def left_to_the_host(graph: Path) -> list[str]:
    """Nodes that ONNX Runtime runs on the CPU, and copies that it inserts, from its own log."""
    options = onnxruntime().SessionOptions()
    options.log_severity_level = options.log_verbosity_level = 0
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            onnxruntime().InferenceSession(
                str(graph), options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
            )
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    assert any("placed on [CUDAExecutionProvider]" in line for line in lines)
    return [line[-200:] for line in lines if re.search(r"placed on \[CPU|Memcpy nodes are added", line)]
