"""What a bundle with states says of itself, what it costs, and that it can be quantized."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from runtime import LLM, EngineOptions, OptionError, SamplingParams
from runtime.bench.graphs import Bench
from runtime.bundle.bundle import open_bundle
from runtime.cli.main import main
from runtime.ort.executor import OnnxExecutor


def command(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_inspect_and_plan_show_what_states_take(make_hybrid: Any) -> None:
    bundle = make_hybrid("granitemoehybrid").bundle
    size = 4 * (192 * 3 + 8 * 16 * 16)  # one convolution over x, B and C; eight heads
    assert json.loads(command("inspect", bundle, "--json"))["state_bytes"] == size
    assert "10.2 KiB per sequence, of layers without attention" in command("inspect", bundle)
    plan = command("plan", bundle, "--memory", "1MiB", "--bandwidth", "1GB/s", "--context", "100")
    assert "100 tokens, 30.8 KiB of states per user" in plan


def test_a_user_pays_for_states_in_plan_and_engine_alike(make_hybrid: Any) -> None:
    bundle = make_hybrid("granitemoehybrid").bundle
    memory = 1 << 20
    made = json.loads(command("plan", bundle, "--memory", memory, "--bandwidth", "1GB/s", "--context", 100, "--json"))
    line = made["lines"][0]
    with LLM(bundle, options=EngineOptions(kv_memory=memory - line["cost"]["weight_bytes"])) as llm:
        pool = llm.model.engine.core.scheduler.pool
    assert pool.row_blocks * 16 * 256 >= 3 * line["cost"]["state_bytes"]
    assert line["users"] == pool.total // pool.blocks(100) > 0


def test_memory_that_holds_no_states_is_refused(make_hybrid: Any) -> None:
    with pytest.raises(OptionError, match=r"bytes per sequence for the states of its layers\. Raise --kv-memory"):
        LLM(make_hybrid("qwen3_5_text").bundle, options=EngineOptions(kv_memory=30_000))


def test_bench_goes_on_behind_every_length(make_hybrid: Any) -> None:
    bundle = make_hybrid("lfm2").bundle
    choices = ["--prompt", "9,40", "--batch", "1,3", "--tokens", "3", "--repeat", "2", "--no-cold", "--json"]
    speeds = json.loads(command("bench", bundle, *choices))
    found = [(speed["phase"], speed["batch"], speed["context"]) for speed in speeds["speeds"]]
    assert found == [("prefill", 1, 9), ("prefill", 1, 40), *(("decode", b, p) for b in (1, 3) for p in (9, 40))]
    savings = Bench(OnnxExecutor(open_bundle(bundle), slots=1), tokens=2).cache_savings([20, 60], 1)
    assert [saving.context for saving in savings] == [20, 60]


def test_two_sessions_say_what_one_says(hybrid: Any) -> None:
    answers = []
    for two in (False, True):
        executor = OnnxExecutor(open_bundle(hybrid.bundle), slots=2, threads=1, two_sessions=two)
        with LLM(hybrid.bundle, executor=executor) as llm:
            answers.append(llm.generate([5, 6, 7] * 9, SamplingParams(max_tokens=9, temperature=1, seed=1)).token_ids)
    assert answers[0] == answers[1]


def test_int4_in_chunks_and_in_company_says_what_it_says_alone(hybrid: Any, tmp_path: Path) -> None:
    target = tmp_path / "int4"
    command("quantize", hybrid.bundle, "-o", target, "--bits", 4, "--group-size", 32)
    prompts = [[(7 * place + seed) % 300 + 5 for place in range(20 + 23 * seed)] for seed in range(4)]
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=0)
    with LLM(target, options=EngineOptions(threads=1, max_concurrency=4, prefill_chunk=20)) as llm:
        together = llm.generate(prompts, params)
    with LLM(target, options=EngineOptions(threads=1, max_concurrency=1)) as llm:
        alone = [llm.generate(prompt, params) for prompt in prompts]
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        ours, theirs = ([entry.logprob for entry in c.logprobs or ()] for c in (one, other))
        assert ours == pytest.approx(theirs, abs=2e-2)


def test_keys_and_values_in_8_bits_beside_states_in_32(make_hybrid: Any, tmp_path: Path) -> None:
    hybrid, text = make_hybrid("qwen3_5_text"), tmp_path / "text.npy"
    np.save(text, np.random.default_rng(0).integers(5, 320, 2048))
    command("quantize-kv", hybrid.bundle, "-o", tmp_path / "kv8", "--calibration", text)
    assert open_bundle(tmp_path / "kv8").manifest.state_bytes == open_bundle(hybrid.bundle).manifest.state_bytes
    params = SamplingParams(max_tokens=8, temperature=1, seed=3, ignore_eos=True, logprobs=0)
    prompt = [(11 * place) % 300 + 5 for place in range(90)]
    with LLM(tmp_path / "kv8", options=EngineOptions(threads=1, prefill_chunk=20)) as llm:
        completion = llm.generate(prompt, params)
    ours = [entry.logprob for entry in completion.logprobs or ()]
    assert ours == pytest.approx(hybrid.logprobs(prompt, completion.token_ids).tolist(), abs=0.1)
