"""The whole path on a real model: a GGUF file to text, beside transformers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import runtime
from exporter.verify.numpy_graphs import NumpyRunner
from runtime.bundle.bundle import open_bundle

ONNXLM = Path(sys.executable).with_name("onnxlm")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def llm(bundle):
    with runtime.LLM(bundle, options=runtime.EngineOptions(max_concurrency=4, context=1024)) as model:
        yield model


def test_logits_of_prefill_and_32_decode_steps(bundle, reference):
    manifest = open_bundle(bundle, verify=True).manifest
    ids = np.random.default_rng(0).integers(0, manifest.architecture.vocab_size, 128)
    with torch.inference_mode():
        expected = reference(input_ids=torch.tensor(ids[None]), use_cache=False).logits[0, 95:].numpy()
    runner = NumpyRunner(bundle, manifest, len(ids))
    ours = np.stack([runner.prefill(ids[:96])] + [runner.decode(int(token)) for token in ids[96:]])
    np.testing.assert_allclose(ours, expected, atol=2e-4)


def test_greedy_text_is_that_of_transformers(llm, reference):
    sky = [{"role": "user", "content": "Why is the sky blue?"}]
    prompt = llm.model.tokenizer.encode(llm.model.render(sky), add_special_tokens=False)
    with torch.inference_mode():
        both = reference.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False, pad_token_id=2)
    completion = llm.generate(prompt, runtime.SamplingParams(temperature=0.0, max_tokens=64))
    assert list(completion.token_ids) == both[0, len(prompt) :].tolist()
    assert len(completion.token_ids) == 64


def test_ragged_batch_is_the_rows_alone(llm):
    prompts = ["The sea", "Once upon a time there was a", "1, 2, 3, 4, 5, 6, 7, 8,", "A"]
    greedy = runtime.SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    together = llm.generate(prompts, greedy)
    assert [c.token_ids for c in together] == [llm.generate(prompt, greedy).token_ids for prompt in prompts]


def test_export_stays_small(smollm2, tmp_path):
    command = [ONNXLM, "export", smollm2, "-o", tmp_path / "out", "--verify", "none", "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert report["peak_rss_bytes"] < 600e6  # with every tensor at once it would be 1,100 MB
    assert report["files"]["weights.bin"] < 541e6


def test_int4_is_a_sixth_and_still_knows_the_capital(bundle, tmp_path):
    command = [ONNXLM, "quantize", bundle, "-o", tmp_path / "int4", "--bits", "4", "--group-size", "32"]
    subprocess.run(command, capture_output=True, text=True, check=True)
    assert (tmp_path / "int4" / "weights.bin").stat().st_size < (bundle / "weights.bin").stat().st_size / 5.5
    with runtime.LLM(tmp_path / "int4", options=runtime.EngineOptions(max_concurrency=1, context=256)) as llm:
        assert "Paris" in llm.chat(QUESTION, runtime.SamplingParams(temperature=0.0, max_tokens=16)).text
