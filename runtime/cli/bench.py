"""`onnxlm bench`: how fast a bundle runs here."""

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..ort.providers import CHOICES

if TYPE_CHECKING:
    from ..bench.cold_start import ColdStart
    from ..bench.graphs import CacheSaving, Speed
    from ..bench.load import Load, Pace
    from ..bench.profile import StepProfile
    from ..bundle.bundle import Bundle
    from ..ort.executor import OnnxExecutor

_COMPARED_CONTEXTS = (64, 128, 256, 512)
_LONG_PROMPT = 2000


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and len(part) < 8 and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of positive integers like 1,4,8")
    return tuple(int(part) for part in parts)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@click.option(
    "--prompt", default="128", show_default=True, callback=_numbers, metavar="N,…", help="Prompt lengths, in tokens."
)
@click.option(
    "--batch", default="1,4,8", show_default=True, callback=_numbers, metavar="N,…", help="Sequences decoded together."
)
@click.option("--tokens", default=32, show_default=True, type=click.IntRange(1, 4096), help="Decode steps measured.")
@click.option("--repeat", default=5, show_default=True, type=click.IntRange(1, 1000), help="Interleaved repetitions.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads; default: the number of cores.")
@click.option("--provider", default="auto", show_default=True, type=click.Choice(CHOICES))
@click.option(
    "--compare", type=click.Choice(["no-cache"]), help="no-cache: what the KV cache saves, at 64 to 512 tokens."
)
@click.option("--concurrency", callback=_numbers, metavar="N,…", help="Measure that many users at once instead.")
@click.option("--profile", is_flag=True, help="Show where a step's time goes, operator by operator, instead.")
@click.option("--kernels", is_flag=True, help="Measure this machine's kernels, without a bundle, for quantize --for.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="With --kernels: write them as JSON to this file."
)
@click.option("--no-cold", is_flag=True, help="Do not measure the start from a new process.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def bench(
    bundle: Path | None,
    compare: str | None,
    concurrency: tuple[int, ...] | None,
    profile: bool,
    kernels: bool,
    output: Path | None,
    no_cold: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Measure BUNDLE: prefill and decode in tokens per second, time to the first token from cold, peak memory.

    Each figure is the median over repetitions that take turns with all others.

    With --concurrency, users ask for uneven answers, each again as soon as one has ended; then so many answers are read
    while a prompt of 2,000 tokens is computed.

    \b
    Example:
      onnxlm bench smol-int4
      onnxlm bench smol-int4 --prompt 128,1024 --batch 1,8 --json
      onnxlm bench smol-int4 --compare no-cache
      onnxlm bench smol-int4 --profile --prompt 128,4096 --batch 1,8
      onnxlm bench smol-int4 --concurrency 1,2,4,8,16
      onnxlm bench --kernels -o costs.json
    """
    if kernels:
        importlib.import_module("quantizer.cli.kernels").measure(bundle, choices["threads"], output, as_json=as_json)
        return
    if output is not None:
        raise click.UsageError("--output is of --kernels: leave it out, or print figures by --json.")
    if bundle is None:
        raise click.UsageError("Missing argument 'BUNDLE': a bundle to measure, or --kernels to measure this machine.")
    modes = {"--profile": _profile, "--compare": _savings, "--concurrency": _loads}
    given = [mode for mode, value in zip(modes, (profile, compare, concurrency), strict=True) if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} measure different things: run the command once for each.")
    opened = _opened(bundle)
    if given:
        figures, text = modes[given[0]](opened, concurrency or (), choices)
    else:
        figures, text = _speeds(opened, None if no_cold else bundle, choices)
    click.echo(json.dumps(figures, indent=1) if as_json else text)


def _opened(bundle: Path) -> "Bundle":
    from ..bundle.bundle import open_bundle
    from ..bundle.sequence_task import require_generation

    opened = open_bundle(bundle)
    require_generation(opened, "a benchmark of prefill and decode")
    return opened


Measured = tuple[Any, str]  # figures for JSON, and the same as text
Choices = dict[str, Any]


def _profile(bundle: "Bundle", _users: Any, choices: Choices) -> Measured:
    profiles = _measure_profiles(bundle, **choices)
    return [asdict(profile) for profile in profiles], _profiles_text(profiles)


def _savings(bundle: "Bundle", _users: Any, choices: Choices) -> Measured:
    savings = _measure_savings(bundle, **choices)
    return [asdict(saving) | {"ratio": saving.ratio} for saving in savings], _savings_text(savings)


def _loads(bundle: "Bundle", users: tuple[int, ...], choices: Choices) -> Measured:
    loads, paces = _measure_loads(bundle, users, **choices)
    figures = {"loads": [asdict(load) for load in loads], "beside_a_long_prompt": [asdict(pace) for pace in paces]}
    return figures, f"{_loads_text(loads)}\n\n{_paces_text(paces)}"


def _speeds(bundle: "Bundle", started: Path | None, choices: Choices) -> Measured:
    """Speeds, and the start from cold of the bundle at `started`."""
    speeds = _measure_speeds(bundle, **choices)
    cold = _measure_cold(started, **choices) if started else None
    figures = {"speeds": [asdict(speed) for speed in speeds], "cold_start": asdict(cold) if cold else None}
    return figures | {"choices": choices}, _speeds_text(speeds) + (f"\n\n{_cold_text(cold)}" if cold else "")


def _measure_speeds(
    bundle: "Bundle", prompt: tuple[int, ...], batch: tuple[int, ...], tokens: int, repeat: int, **where: Any
) -> "list[Speed]":
    from ..bench.graphs import Bench
    from ..errors import PromptTooLongError

    longest, most = max(prompt) + tokens, bundle.manifest.architecture.context_length
    if longest > most:
        raise PromptTooLongError(
            f"--prompt {max(prompt)} and --tokens {tokens} need {longest} tokens, and the model's context holds {most}."
        )
    cases = len(prompt) * (1 + len(batch))
    with _executor(bundle, max(batch), longest, **where) as executor, _progress(cases, repeat) as advance:
        return Bench(executor, tokens=tokens).speeds(prompt, batch, repeat, advance)


def _measure_profiles(
    bundle: "Bundle",
    prompt: tuple[int, ...],
    batch: tuple[int, ...],
    tokens: int,
    provider: str,
    threads: int | None,
    **_: Any,
) -> "list[StepProfile]":
    from ..bench.profile import profile_steps

    return profile_steps(bundle, provider, prompts=prompt, batches=batch, steps=tokens, threads=threads)


def _measure_savings(
    bundle: "Bundle", tokens: int, repeat: int, provider: str, threads: int | None, **_: Any
) -> "list[CacheSaving]":
    from ..bench.graphs import Bench

    most = bundle.manifest.architecture.context_length
    contexts = [n for n in _COMPARED_CONTEXTS if n + tokens <= most] or [max(2, most - tokens)]
    longest = min(max(contexts) + tokens, most)
    with (
        _executor(bundle, 1, longest, provider, threads) as executor,
        _progress(2 * len(contexts), repeat) as advance,
    ):
        return Bench(executor, tokens=tokens).cache_savings(contexts, repeat, advance)


def _measure_loads(
    bundle: "Bundle",
    concurrencies: tuple[int, ...],
    prompt: tuple[int, ...],
    tokens: int,
    repeat: int,
    provider: str,
    threads: int | None,
    **_: Any,
) -> "tuple[list[Load], list[Pace]]":
    from ..bench.load import LoadBench
    from ..llm import LLM
    from ..options import EngineOptions

    context = min(bundle.manifest.architecture.context_length, 2 * _LONG_PROMPT)
    long = min(_LONG_PROMPT, context // 2)
    options = EngineOptions(max_concurrency=max(concurrencies) + 1, context=context, threads=threads, prepare=False)
    with LLM(bundle.folder, provider, options) as llm, _progress(len(concurrencies), repeat) as advance:
        bench = LoadBench(llm, prompt=min(prompt[0], context // 2), tokens=min(tokens, context // 2))
        loads = bench.loads(concurrencies, repeat, advance)
        return loads, [bench.pace(readers, long) for readers in concurrencies]


def _measure_cold(
    bundle: Path, prompt: tuple[int, ...], tokens: int, provider: str, threads: int | None, **_: Any
) -> "ColdStart":
    from ..bench.cold_start import measure_cold_start

    return measure_cold_start(bundle, provider, prompt[0], tokens, threads)


@contextmanager
def _executor(
    bundle: "Bundle", rows: int, context: int, provider: str, threads: int | None
) -> "Iterator[OnnxExecutor]":
    from ..ort.executor import OnnxExecutor
    from ..ort.prepared.weights import find
    from ..ort.session import choose_provider

    chosen, prepared = choose_provider(provider, bundle), find(bundle)
    graph = prepared.graph if prepared else None
    executor = OnnxExecutor(bundle, chosen, slots=rows, context=context, threads=threads, graph=graph)
    try:
        yield executor
    finally:
        executor.close()


@contextmanager
def _progress(cases: int, repeat: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, on a terminal only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=cases * (repeat + 1))
        yield lambda: bar.advance(task)


def _profiles_text(profiles: "list[StepProfile]") -> str:
    return "\n\n".join(map(_profile_text, profiles))


def _profile_text(profile: "StepProfile") -> str:
    head = f"{profile.phase} of batch {profile.batch}, context {profile.context}: "
    head += f"{1e3 * profile.seconds:.2f} ms and {profile.kernels:g} operators a step"
    lines = [
        f"{1e3 * one.seconds:10.3f} ms {one.seconds / profile.seconds:7.1%} {one.calls or '':>6}  {one.operator}"
        for one in profile.operators
    ]
    return "\n".join([head, *lines])


def _speeds_text(speeds: "list[Speed]") -> str:
    head = f"{'':8} {'batch':>5} {'context':>8} {'tokens/s':>10}   from … to"
    lines = [
        f"{s.phase:8} {s.batch:5} {s.context:8} {s.tokens_per_second:10.1f}   {s.slowest:.1f} … {s.fastest:.1f}"
        for s in speeds
    ]
    return "\n".join([head, *lines])


def _loads_text(loads: "list[Load]") -> str:
    head = f"{'users':>6} {'tokens/s':>10} {'each':>8} {'first token':>13} {'next, 50 %':>12} {'95 %':>9}"
    lines = [
        f"{load.concurrency:6} {load.tokens_per_second:10.1f} {load.tokens_per_second / load.concurrency:8.1f} "
        f"{load.first_token_seconds:11.2f} s {1e3 * load.median_token_seconds:9.0f} ms "
        f"{1e3 * load.token_seconds:6.0f} ms"
        for load in loads
    ]
    return "\n".join([head, *lines])


def _paces_text(paces: "list[Pace]") -> str:
    head = (
        f"{'users':>6} {'next, 95 %':>12} {'beside a prompt of':>19} {'ratio':>7} {'longest':>10} {'its own first':>14}"
    )
    return "\n".join([head, *map(_pace_text, paces)])


def _pace_text(pace: "Pace") -> str:
    idle, busy, longest = (1e3 * seconds for seconds in (pace.idle_seconds, pace.busy_seconds, pace.longest_seconds))
    return (
        f"{pace.readers:6} {idle:9.0f} ms {pace.prompt:8,}: {busy:6.0f} ms {busy / idle if idle else 0:7.2f} "
        f"{longest:7.0f} ms {pace.first_token_seconds:12.2f} s"
    )


def _cold_text(cold: "ColdStart") -> str:
    from ..host.byte_units import format_bytes

    return (
        f"from a new process: loaded after {cold.load_seconds:.2f} s, "
        f"first token after {cold.first_token_seconds:.2f} s, peak memory {format_bytes(cold.peak_memory)}"
    )


def _savings_text(savings: "list[CacheSaving]") -> str:
    from ..bundle.kv_layout import positions_computed

    head = f"{'context':>8} {'with cache':>12} {'without':>10} {'ratio':>8}   positions computed up to there"
    lines = [
        f"{s.context:8} {s.cached:8.1f} t/s {s.uncached:6.1f} t/s {s.ratio:7.1f}×"
        f"   {positions_computed(s.context, cached=True):,} instead of {positions_computed(s.context, cached=False):,}"
        for s in savings
    ]
    return "\n".join([head, *lines])
