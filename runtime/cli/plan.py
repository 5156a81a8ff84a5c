"""`onnxlm plan`: how many users fit, and how fast one of them can be."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..advice.plan import Cost, Plan
    from ..bundle.bundle import Bundle


def _size(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    from ..host.byte_units import parse_bytes

    try:
        return None if value is None else parse_bytes(value.removesuffix("/s"))
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--memory", callback=_size, metavar="SIZE", help="Memory to plan for. [default: what is free here]")
@click.option("--bandwidth", callback=_size, metavar="SIZE/s", help="Of that memory. [default: measured here]")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of one user. [default: the model's context]")
@click.option("--measure", is_flag=True, help="Load the bundle and compare the bound with the speed it reaches here.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def plan(
    bundle: Path, memory: int | None, bandwidth: int | None, context: int | None, measure: bool, as_json: bool
) -> None:
    """Show what serving BUNDLE costs: bytes per token, users that fit, and the speed that memory bandwidth allows.

    \b
    Example:
      onnxlm plan smol-int4 --memory 40GiB --bandwidth 1TB/s --context 2000
      onnxlm plan smol-int4 --measure
    """
    from ..advice.plan import make_plan
    from ..bundle.bundle import open_bundle
    from ..bundle.sequence_task import require_generation
    from ..host.machine import read_bandwidth, usable_cores
    from ..host.memory import available_memory

    opened = open_bundle(bundle)
    require_generation(opened, "a plan of caches and users")
    manifest = opened.manifest
    made = make_plan(
        _stored(opened),
        manifest,
        memory or available_memory(),
        bandwidth or read_bandwidth(usable_cores()),
        context or manifest.architecture.context_length,
    )
    measured = _measured(opened, made.context) if measure else None
    click.echo(_json(made, measured) if as_json else _text(made, measured))


def _stored(bundle: "Bundle") -> "Cost":
    from ..advice.plan import current_cost
    from ..bundle.inspection import inspect_bundle

    sizes = {module.name: module.bytes for module in inspect_bundle(bundle).modules}
    table = sizes.get("model.embed_tokens", 0) if "lm_head" in sizes else 0
    return current_cost(bundle.manifest, sum(sizes.values()), table)


def _measured(bundle: "Bundle", context: int) -> float:
    """Tokens per second of one request with about `context` tokens behind it."""
    from ..bench.graphs import Bench
    from ..ort.executor import OnnxExecutor
    from ..ort.session import choose_provider

    tokens = 16
    executor = OnnxExecutor(bundle, choose_provider("auto", bundle), slots=1)
    behind = max(1, min(context, executor.capacity - tokens))
    speeds = Bench(executor, tokens=tokens).speeds([behind], [1], repeat=5)
    executor.close()
    return next(speed.tokens_per_second for speed in speeds if speed.phase == "decode")


def _json(made: "Plan", measured: float | None) -> str:
    figures: dict[str, Any] = asdict(made) | {"measured_tokens_per_second": measured}
    return json.dumps(figures, indent=1)


def _text(made: "Plan", measured: float | None) -> str:
    from ..bundle.kv_layout import STATE_COPIES
    from ..host.byte_units import format_bytes

    current = made.lines[0]
    rows = [("", "weights", "KV per token", "users", "a 32k user displaces", "tokens/s, one user")]
    rows += [
        (
            line.cost.name,
            format_bytes(line.cost.weight_bytes),
            format_bytes(line.cost.kv_bytes_per_token),
            str(line.users),
            str(line.displaced),
            f"≤ {line.tokens_per_second:.1f}",
        )
        for line in made.lines
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    states = current.cost.state_bytes
    beside = f", {format_bytes(STATE_COPIES * states)} of states" if states else ""
    lines = [
        f"memory {format_bytes(made.memory)}, {format_bytes(made.bandwidth)}/s, {made.context} tokens{beside} per user",
        "",
        *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
    ]
    if measured is not None:
        share = measured / current.tokens_per_second
        lines += ["", f"measured here: {measured:.1f} tokens/s, {share:.0%} of the bound"]
    return "\n".join(lines)
