"""`onnxlm bench`: what is measured, not how fast a test machine is."""

import json

import pytest
from click.testing import CliRunner

from runtime.bench.graphs import CacheSaving, interleave
from runtime.cli.main import main


def bench(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


FEW = ["--repeat", "2", "--tokens", "4"]


def test_every_case_has_a_figure(tiny_bundle):
    out = bench(str(tiny_bundle), "--prompt", "8,16", "--batch", "1,3", "--no-cold", "--json", *FEW)
    speeds = json.loads(out)["speeds"]
    assert [(s["phase"], s["batch"], s["context"]) for s in speeds] == [
        ("prefill", 1, 8), ("prefill", 1, 16),
        ("decode", 1, 8), ("decode", 1, 16), ("decode", 3, 8), ("decode", 3, 16),
    ]  # fmt: skip
    assert all(0 < s["slowest"] <= s["tokens_per_second"] <= s["fastest"] for s in speeds)


def test_the_cold_start_is_another_process(tiny_bundle):
    cold = json.loads(bench(str(tiny_bundle), "--prompt", "8", "--batch", "1", "--json", *FEW))["cold_start"]
    assert 0.05 < cold["load_seconds"] <= cold["first_token_seconds"] < 120
    assert cold["peak_memory"] > 20 << 20


def test_the_table_is_for_people(tiny_bundle):
    out = bench(str(tiny_bundle), "--prompt", "8", "--batch", "1,2", *FEW)
    assert "tokens/s" in out
    assert "first token after" in out


def test_no_cache_says_what_the_cache_saves(tiny_bundle):
    savings = json.loads(bench(str(tiny_bundle), "--compare", "no-cache", "--json", *FEW))
    assert [saving["context"] for saving in savings] == [64, 128]  # 256 and 512 exceed the tiny model's context
    assert all(saving["ratio"] == pytest.approx(saving["cached"] / saving["uncached"]) for saving in savings)
    assert "8,256" in bench(str(tiny_bundle), "--compare", "no-cache", *FEW)


def test_two_things_at_once_are_refused(tiny_bundle):
    done = CliRunner().invoke(main, ["bench", str(tiny_bundle), "--profile", "--concurrency", "2"])
    assert done.exit_code == 2
    assert "--profile and --concurrency" in done.output


def test_users_at_once_are_measured_together(tiny_bundle):
    arguments = [str(tiny_bundle), "--prompt", "8", "--concurrency", "1,3", *FEW]
    figures = json.loads(bench(*arguments, "--json"))
    assert [load["concurrency"] for load in figures["loads"]] == [1, 3]
    assert all(value > 0 for load in figures["loads"] for value in load.values())
    paces = figures["beside_a_long_prompt"]
    assert [(pace["readers"], pace["prompt"]) for pace in paces] == [(1, 128), (3, 128)]
    assert all(pace["idle_seconds"] > 0 and pace["first_token_seconds"] > 0 for pace in paces)
    assert "first token" in bench(*arguments)


def test_a_prompt_longer_than_the_context_is_refused(tiny_bundle):
    done = CliRunner().invoke(main, ["bench", str(tiny_bundle), "--prompt", "250", "--tokens", "10"])
    assert done.exit_code == 1
    assert "need 260 tokens, and the model's context holds 256" in done.output


@pytest.mark.parametrize("value", ["", "1,", "0", "-1", "1.5", "a", "99999999"])
def test_a_list_that_is_none_is_a_usage_error(tiny_bundle, value):
    done = CliRunner().invoke(main, ["bench", str(tiny_bundle), "--batch", value])
    assert done.exit_code == 2
    assert "is not a list of positive integers" in done.output


def test_a_cold_start_that_fails_says_why(tiny_bundle, tmp_path):
    from runtime.bench.cold_start import measure_cold_start
    from runtime.errors import ExecutionError

    with pytest.raises(ExecutionError, match="no such folder"):
        measure_cold_start(tmp_path / "nothing")


def test_cases_take_turns():
    order: list[str] = []

    def case(name):
        return lambda: order.append(name) or 1.0

    assert interleave([case("a"), case("b")], repeat=2) == [[1.0, 1.0], [1.0, 1.0]]
    assert order == ["a", "b"] * 3  # the first pair warms up


def test_a_saving_is_a_ratio():
    assert CacheSaving(64, cached=90.0, uncached=6.0).ratio == 15


def test_a_profile_accounts_for_the_whole_step(tiny_bundle):
    arguments = [str(tiny_bundle), "--profile", "--prompt", "8,100", "--batch", "1,2", "--tokens", "3"]
    profiles = json.loads(bench(*arguments, "--json"))
    assert [(p["phase"], p["batch"], p["context"]) for p in profiles] == [
        ("prefill", 1, 8), ("prefill", 1, 100),
        ("decode", 1, 8), ("decode", 1, 100), ("decode", 2, 8), ("decode", 2, 100),
    ]  # fmt: skip
    calls = [{one["operator"]: one["calls"] for one in p["operators"]} for p in profiles]
    assert all(found["GroupQueryAttention"] == 2 for found in calls[2:])  # one a layer, once a step
    for p in profiles:
        assert sum(one["seconds"] for one in p["operators"]) == pytest.approx(p["seconds"], rel=0.02)
    assert "between operators" in bench(*arguments)
