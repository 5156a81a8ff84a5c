"""Where the time of a step goes: in each operator, between operators, and outside ONNX Runtime.

ONNX Runtime's own profiler is on meanwhile, which costs about a microsecond per operator: compare shares, not seconds,
with what `Bench` measures.
"""

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..bundle.bundle import Bundle
from ..ort.executor import OnnxExecutor
from ..ort.prepared.weights import find
from ..ort.session import choose_provider

BETWEEN, OUTSIDE = "between operators", "outside ONNX Runtime"


@dataclass(frozen=True)
class OperatorTime:
    """One kind of operator in one step: `seconds` of all its `calls`."""

    operator: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class StepProfile:
    """One kind of step, the mean of several. `context` is the prompt's length, or for decode what was there before."""

    phase: Literal["prefill", "decode"]
    batch: int
    context: int
    seconds: float
    operators: tuple[OperatorTime, ...]

    @property
    def kernels(self) -> float:
        """Operators that ran in a step."""
        return sum(one.calls for one in self.operators)


def profile_steps(
    bundle: Bundle,
    provider: str = "auto",
    *,
    prompts: Sequence[int] = (128,),
    batches: Sequence[int] = (1,),
    steps: int = 16,
    threads: int | None = None,
) -> list[StepProfile]:
    """Prefill of each prompt length, then decode of each batch size behind each length.

    Raises:
        ProviderError, ExecutionError: the bundle cannot run here.
    """
    cases: list[tuple[Literal["prefill", "decode"], int, int]] = [("prefill", 1, prompt) for prompt in prompts]
    cases += [("decode", batch, prompt) for batch in batches for prompt in prompts]
    slots, context = max(batches), max(prompts) + steps + 1
    return [_profile(bundle, provider, case, steps, threads, slots, context) for case in cases]


def _profile(
    bundle: Bundle,
    provider: str,
    case: tuple[Literal["prefill", "decode"], int, int],
    steps: int,
    threads: int | None,
    slots: int,
    context: int,
) -> StepProfile:
    phase, batch, length = case
    prepared, chosen = find(bundle), choose_provider(provider, bundle)
    graph = prepared.graph if prepared else None
    with tempfile.TemporaryDirectory() as folder:
        executor = OnnxExecutor(
            bundle, chosen, slots=slots, context=context, threads=threads, graph=graph, profile=Path(folder) / "profile"
        )
        try:
            step = _step(executor, phase, batch, length)
            step(0)  # the first one allocates
            started = time.perf_counter()
            for number in range(steps):
                step(number)
            seconds = time.perf_counter() - started
            events = json.loads(executor.end_profile().read_text(encoding="utf-8"))
        finally:
            executor.close()
    return StepProfile(
        phase, batch, length, seconds / steps, _operators(_last_runs(events, phase, steps), steps, seconds)
    )


def _step(executor: OnnxExecutor, phase: str, batch: int, length: int) -> Callable[[int], Any]:
    ids = np.random.default_rng(0).integers(0, executor.vocab_size, max(length, batch))
    if phase == "prefill":
        return lambda _: executor.prefill(0, 0, ids[:length])
    executor.prefill(0, 0, ids[:length])
    for slot in range(1, batch):
        executor.copy_slot(0, slot, length)
    return lambda number: executor.decode(ids[:batch], np.full(batch, length + number, np.int64))


def _last_runs(events: list[dict[str, Any]], phase: str, steps: int) -> list[dict[str, Any]]:
    """The events of the last `steps` steps: a decode step is one run, a long prompt may be several."""
    runs = [event["ts"] for event in events if event.get("name") == "model_run"]
    count = steps if phase == "decode" else len(runs) * steps // (steps + 1)
    return [event for event in events if event["ts"] >= runs[-count]]


def _operators(events: list[dict[str, Any]], steps: int, seconds: float) -> tuple[OperatorTime, ...]:
    """The times per step, largest first, with what is left over as two rows without calls."""
    calls: dict[str, int] = defaultdict(int)
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            operator = event["args"]["op_name"]
            calls[operator] += 1
            spent[operator] += event["dur"] / 1e6
    inside = sum(event["dur"] for event in events if event.get("name") == "model_run") / 1e6
    found = [OperatorTime(name, calls[name] / steps, spent[name] / steps) for name in calls]
    found.sort(key=lambda one: -one.seconds)
    found.append(OperatorTime(BETWEEN, 0, max(0.0, inside - sum(spent.values())) / steps))
    found.append(OperatorTime(OUTSIDE, 0, max(0.0, seconds - inside) / steps))
    return tuple(found)
