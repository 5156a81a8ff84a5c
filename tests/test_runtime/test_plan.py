"""The cost model: the worked examples, and the command."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime.advice.plan import Cost, make_plan
from runtime.bundle.bundle import open_bundle
from runtime.bundle.kv_layout import kv_bytes_per_token
from runtime.cache.blocks import BlockPool
from runtime.cli.main import main
from runtime.errors import OptionError
from runtime.host.byte_units import parse_bytes

GIB = 1 << 30


def test_a_seven_billion_model_in_40_gib() -> None:
    kv = kv_bytes_per_token([(32, 128)] * 32, bits=16)
    cost = Cost("7B fp16", 13 * GIB, 13 * GIB, kv)
    assert cost.users(40 * GIB, 2000) == 27 * GIB // (kv * 16) // 125
    assert cost.users(40 * GIB, 2000) - cost.users_beside(40 * GIB, 2000) == 16  # one of 32,000 tokens
    assert cost.tokens_per_second(1e12, 0) == pytest.approx(71.6, abs=0.1)


def test_users_are_counted_as_admission_counts_them() -> None:
    cost = Cost("x", 1000, 1000, 10)
    pool = BlockPool.of_bytes(9000, 10)
    admitted = 0
    while pool.take(pool.blocks(100)):
        admitted += 1
    assert cost.users(10_000, 100) == admitted


def test_nothing_fits_where_the_weights_do_not() -> None:
    cost = Cost("x", 1000, 1000, 10)
    assert (cost.users(900, 10), cost.users_beside(900, 10)) == (0, 0)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("1K", 1024), ("1kB", 1000), ("40GiB", 40 * GIB), ("1.5 TB", 1_500_000_000_000), ("2mib", 2 << 20)],
)
def test_sizes_with_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1K", "0", "1 QB", "nan", "1e400T"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size like"):
        parse_bytes(text)


def test_the_plan_of_a_bundle(tiny_bundle: Path) -> None:
    manifest = open_bundle(tiny_bundle).manifest
    plan = make_plan(Cost("as it is", 400_000, 400_000, 1024), manifest, 10 << 20, 1e9, 256)
    by_name = {line.cost.name: line for line in plan.lines}
    assert by_name["as it is"].users == ((10 << 20) - 400_000) // (1024 * 16) // 16
    assert by_name["int8 keys and values"].cost.kv_bytes_per_token == 2 * 2 * 2 * 16
    assert by_name["int4 weights"].tokens_per_second > by_name["as it is"].tokens_per_second
    with pytest.raises(OptionError, match="context"):
        make_plan(Cost("x", 1, 1, 1), manifest, 1, 1.0, 0)


def test_the_command(tiny_bundle: Path) -> None:
    arguments = ["plan", str(tiny_bundle), "--memory", "1GiB", "--bandwidth", "10GB/s", "--context", "200", "--measure"]
    figures = json.loads(CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert figures["lines"][0]["users"] > 1000
    assert figures["measured_tokens_per_second"] > 0
    shown = CliRunner().invoke(main, arguments, catch_exceptions=False).stdout
    assert "memory 1.0 GiB, 9.3 GiB/s, 200 tokens per user" in shown
    assert "of the bound" in shown
    wrong = CliRunner().invoke(main, ["plan", str(tiny_bundle), "--memory", "much"])
    assert wrong.exit_code == 2
