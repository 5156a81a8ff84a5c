"""A process that starts from nothing, answers one prompt, and says how long that took and how much memory.

`measure_cold_start` runs this file as a new Python, so that nothing is loaded, mapped or compiled yet. (The operating
system's file cache may be warm: on a server that restarts, it is.)
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ExecutionError
from ..host.memory import peak_memory


@dataclass(frozen=True)
class ColdStart:
    """Seconds since the process was started, and the most memory it held."""

    first_token_seconds: float
    load_seconds: float
    peak_memory: int


def measure_cold_start(
    bundle: Path, provider: str = "auto", prompt_tokens: int = 16, tokens: int = 32, threads: int | None = None
) -> ColdStart:
    """Start a new process that loads the bundle and answers a prompt of `prompt_tokens` tokens with `tokens` tokens.

    Raises:
        ExecutionError: the process failed; its own words are in the message.
    """
    choice = {"provider": provider, "prompt_tokens": prompt_tokens, "tokens": tokens, "threads": threads}
    code = f"import {__package__}.cold_start as c; c.answer_once({str(bundle)!r}, {choice!r})"
    started = time.time()
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise ExecutionError(f"The cold start failed: {done.stderr.strip().splitlines()[-1:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return ColdStart(found["first"] - started, found["loaded"] - started, found["peak"])


def answer_once(bundle: str, choice: dict[str, Any]) -> None:
    """What the new process does; prints the times of day at which it had loaded and had the first token."""
    from .. import LLM, EngineOptions, SamplingParams

    with LLM(bundle, provider=choice["provider"], options=EngineOptions(threads=choice["threads"])) as llm:
        loaded = time.time()
        params = SamplingParams(max_tokens=choice["tokens"], temperature=0.0, ignore_eos=True)
        stream = iter(llm.stream(list(range(1, choice["prompt_tokens"] + 1)), params))
        next(stream)
        first = time.time()
        for _ in stream:
            pass
        print(json.dumps({"loaded": loaded, "first": first, "peak": peak_memory()}))  # noqa: T201 - the answer
