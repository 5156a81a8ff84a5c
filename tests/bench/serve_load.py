"""Many clients against `onnxlm serve`: every answer whole or a quick 429, health throughout, and as before afterwards.

    python tests/bench/serve_load.py demo/int4                    # 200 clients, 8 rows, a queue of 32, two minutes
    python tests/bench/serve_load.py demo/int4 --url http://127.0.0.1:8080   # and the same storm on another server

The other server is anything with OpenAI's /v1/chat/completions, such as llama-server; it is stormed after ours, and
only its throughput and latencies are compared. Exits 1 if a promise is broken.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

SAMPLE = 50  # answers that are compared with a solo run
HEALTH_SECONDS = 0.1
PROBE = Path(__file__).with_name("health_probe.py")
TOPICS = ["rain", "bread", "the sea", "a clock", "winter", "bees", "a bridge", "old maps"]


@dataclass
class Storm:
    """What a storm of requests saw."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)  # how late the probe of /health itself woke up
    answers: dict[int, dict] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    tokens: int = 0
    prompt_tokens: int = 0


def request(number: int, model: str | None) -> dict:
    """A request that is repeatable by its number; a third of them share a long beginning."""
    rng = random.Random(number)
    start = "You are a patient teacher who explains simple things to children. " * (3 if number % 3 == 0 else 0)
    content = f"{start}Tell me about {rng.choice(TOPICS)}, please. ({number % 500})"
    named = {"model": model} if model else {}
    return named | {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": rng.randint(8, 48),
        "temperature": 0.8,
        "seed": number,
    }


async def client(number: int, step: int, http: httpx.AsyncClient, end: float, storm: Storm, model: str | None) -> None:
    while time.monotonic() < end:
        number += step
        begun = time.monotonic()
        answer = await http.post("/v1/chat/completions", json=request(number, model))
        took = time.monotonic() - begun
        storm.statuses[answer.status_code] += 1
        if answer.status_code == 200:
            storm.latencies.append(took)
            keep(number, answer.json(), storm)
        elif answer.status_code == 429:
            storm.refusals.append(took)
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)) * random.uniform(0.5, 1.5))
        else:
            storm.broken.append(f"status {answer.status_code}: {answer.text[:200]}")


def keep(number: int, answer: dict, storm: Storm) -> None:
    choice, usage = answer["choices"][0], answer["usage"]
    wanted = request(number, None)["max_tokens"]
    whole = choice["finish_reason"] == "stop" or usage["completion_tokens"] == wanted
    if not whole:
        storm.broken.append(f"request {number} ended early: {choice['finish_reason']}, {usage}")
    storm.tokens += usage["completion_tokens"]
    storm.prompt_tokens += usage["prompt_tokens"]
    storm.answers[number] = choice["message"]


async def watched(url: str, seconds: float, storm: Storm) -> None:
    """Ask /health ten times a second, from a process of its own; see health_probe.py."""
    host, _, port = url.removeprefix("http://").partition(":")
    probe = await asyncio.create_subprocess_exec(
        sys.executable, str(PROBE), host, port, str(seconds), stdout=subprocess.PIPE
    )
    found = json.loads((await probe.communicate())[0])
    storm.health = [took for _, took in found["seen"]]
    storm.late = found["late"]
    storm.broken += [f"/health said {status}" for status, _ in found["seen"] if status != 200]


async def run_storm(url: str, clients: int, seconds: float, model: str | None, *, health: bool) -> Storm:
    storm = Storm()
    async with AsyncExitStack() as stack:
        # A pool each: one pool of hundreds of connections takes longer to choose one than the server to answer.
        pools = [httpx.AsyncClient(base_url=url, timeout=300, verify=False) for _ in range(clients)]
        for pool in pools:
            await stack.enter_async_context(pool)
        begun = time.monotonic()
        end = begun + seconds
        tasks = [client(number, clients, http, end, storm, model) for number, http in enumerate(pools)]
        await asyncio.gather(*tasks, *([watched(url, seconds, storm)] if health else []))
        storm.seconds = time.monotonic() - begun
    return storm


@contextmanager
def our_server(bundle: Path, rows: int, queue: int) -> Iterator[tuple[str, int]]:
    """`onnxlm serve` in a process of its own: its address and process id."""
    command = [sys.executable, "-c", "from runtime.cli.main import main; main()", "serve", str(bundle), "--port", "0"]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--max-concurrency", str(rows), "--max-queue", str(queue)], stderr=log.file
        )
        try:
            while not (found := re.search(r"at (http://\S+)", Path(log.name).read_text())):
                if process.poll() is not None:
                    raise SystemExit(Path(log.name).read_text())
                time.sleep(0.05)
            yield found[1], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            print("exit status", process.wait(60))


def resources(pid: int) -> tuple[int, int]:
    """(resident MiB, threads) of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    memory, threads = (re.search(rf"{name}:\s+(\d+)", status) for name in ("VmRSS", "Threads"))
    return int(memory[1]) // 1024, int(threads[1])


def solo(url: str, storm: Storm) -> int:
    """How many answers of a sample differ when each is asked for alone."""
    numbers = random.Random(0).sample(sorted(storm.answers), min(SAMPLE, len(storm.answers)))
    with httpx.Client(base_url=url, timeout=300) as http:
        alone = {n: http.post("/v1/chat/completions", json=request(n, None)).json() for n in numbers}
    return sum(alone[n]["choices"][0]["message"] != storm.answers[n] for n in numbers)


def idle(url: str) -> dict:
    """The server's figures once nothing is inside."""
    for _ in range(600):
        status = httpx.get(f"{url}/status").json()
        if not status["inside"] and not any(model["running"] + model["waiting"] for model in status["models"]):
            break
        time.sleep(0.1)
    return status


def spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    shown = [median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1]]
    return "median {:.1f}, 99 % {:.1f}, most {:.1f} ms".format(*(1000 * value for value in shown))


def report(name: str, storm: Storm) -> None:
    ordered = sorted(storm.latencies) or [0.0]
    print(
        f"{name}: {storm.statuses[200]} answers and {storm.statuses[429]} refusals in {storm.seconds:.0f} s, "
        f"{storm.tokens / storm.seconds:.1f} tokens/s, {storm.prompt_tokens / storm.seconds:.1f} prompt tokens/s\n"
        f"  latency median {median(ordered):.2f} s, 99 % {ordered[int(len(ordered) * 0.99)]:.2f} s; "
        f"refusal median {median(storm.refusals or [0.0]) * 1000:.0f} ms"
    )


def check(storm: Storm, before: tuple[int, int], after: tuple[int, int], status: dict, different: int) -> list[str]:
    """What was promised and is not so."""
    model = status["models"][0]
    slow = [seconds for seconds in storm.health if seconds > HEALTH_SECONDS]
    late = sorted(storm.refusals)[int(len(storm.refusals) * 0.99)] if storm.refusals else 0.0
    return [
        *storm.broken[:5],
        *([f"{different} of {SAMPLE} sampled answers differ from a solo run"] if different else []),
        *([f"/health took over {HEALTH_SECONDS} s {len(slow)} times of {len(storm.health)}"] if slow else []),
        *([f"a refusal took {late:.2f} s"] if late > 1 else []),
        *([f"left behind: {status}"] if status["inside"] or model["running"] or model["waiting"] else []),
        *([f"threads {before[1]} → {after[1]}"] if after[1] > before[1] else []),
        *([f"memory {before[0]} → {after[0]} MiB"] if after[0] > before[0] * 1.1 + 32 else []),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--queue", type=int, default=32)
    parser.add_argument("--url", help="another server, for comparison")
    parser.add_argument("--model", help="the model's name at --url")
    options = parser.parse_args()
    with our_server(Path(options.bundle), options.slots, options.queue) as (url, pid):
        asyncio.run(run_storm(url, options.clients, options.seconds / 6, None, health=False))  # memory settles
        idle(url)
        before = resources(pid)
        storm = asyncio.run(run_storm(url, options.clients, options.seconds, None, health=True))
        status, after = idle(url), resources(pid)
        different = solo(url, storm)
    report("onnxlm", storm)
    print(f"  /health {spread(storm.health)}; the probe itself was late by {spread(storm.late)}")
    print(
        f"  memory {before[0]} → {after[0]} MiB, threads {before[1]} → {after[1]}; {different} of {SAMPLE} differ alone"
    )
    if options.url:
        other = run_storm(options.url, options.clients, options.seconds, options.model, health=False)
        report(options.url, asyncio.run(other))
    if problems := check(storm, before, after, status, different):
        raise SystemExit("broken promises:\n  " + "\n  ".join(problems))
    print(json.dumps({"tokens_per_second": storm.tokens / storm.seconds, "answers": storm.statuses[200]}))


if __name__ == "__main__":
    main()
