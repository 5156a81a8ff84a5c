"""How much of each phase of `onnxlm quantize` would run beside itself on a machine of 8 cores.

    python tests/bench/parallel_share.py BUNDLE             # a float bundle; the whole default run
    python tests/bench/parallel_share.py BUNDLE --threads 16 --calibration-tokens 2048

The run believes that there are so many cores and starts as many threads. A watcher outside counts, a hundred times a
second, how many of them could run. What the cores that are really there do in that time would take so many threads
their share of it on the machine that is simulated; by Amdahl's law the sum says which part of a phase's work is
parallel. Memory that all cores share is not simulated.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

_EVERY = 0.01  # seconds


def child(source: Path, target: Path, threads: int, tokens: int | None) -> None:
    """The run, in a process that believes in `threads` cores; tells each phase."""
    import onnxruntime

    import runtime.host.machine as machine

    machine.usable_cores = machine.compute_threads = lambda: threads  # before anybody imports them by name
    options = onnxruntime.SessionOptions

    def with_threads() -> onnxruntime.SessionOptions:
        made = options()
        made.intra_op_num_threads = threads
        return made

    onnxruntime.SessionOptions = with_threads
    from quantizer.flow import quantize
    from quantizer.presets import make_recipe

    told = [""]

    def progress(phase: str, _done: int, _total: int) -> None:
        if phase != told[0]:
            told[0] = phase
            print("phase", phase, flush=True)

    progress("preparing", 0, 1)
    quantize(source, target, make_recipe(calibration_tokens=tokens), progress=progress)


def runnable(process: int) -> int:
    """Threads of a process that run or could."""
    count = 0
    for status in Path(f"/proc/{process}/task").glob("*/stat"):
        try:
            count += status.read_text().rpartition(")")[2].split()[0] == "R"
        except OSError:
            continue
    return count


def watch(command: list[str], threads: int, cores: int) -> dict[str, tuple[float, float]]:
    """By phase, the seconds of work, and the seconds that it would take `threads` cores."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    with tempfile.TemporaryFile("w+") as out, subprocess.Popen(command, stdout=out, text=True) as process:
        last = time.monotonic()
        while process.poll() is None:
            time.sleep(_EVERY)
            count, now = runnable(process.pid), time.monotonic()
            out.seek(0)
            names = [line[6:].strip() for line in out.read().splitlines() if line.startswith("phase ")]
            work = min(count, cores) * (now - last)
            phase = found[names[-1] if names else "starting"]
            phase[0] += work
            phase[1] += work / max(1, min(count, threads))
            last = now
    if process.returncode:
        raise SystemExit(f"the run failed with exit code {process.returncode}")
    return {name: (work, simulated) for name, (work, simulated) in found.items()}


def parallel_part(work: float, simulated: float, threads: int) -> float:
    """p of Amdahl's law, simulated = work · (1 − p + p / threads)."""
    return (1 - simulated / work) / (1 - 1 / threads) if work else 1.0


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--calibration-tokens", type=int)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.bundle, chosen.child, chosen.threads, chosen.calibration_tokens)
        return
    from runtime.host.machine import usable_cores

    with tempfile.TemporaryDirectory(prefix="onnxlm-share-") as folder:
        arguments = [*sys.argv[1:], "--child", str(Path(folder) / "q")]
        phases = watch([sys.executable, __file__, *arguments], chosen.threads, usable_cores())
    print(f"{'phase':42}{'work, s':>10}{'parallel':>10}")
    for name, (work, simulated) in phases.items():
        print(f"{name:42}{work:10.1f}{parallel_part(work, simulated, chosen.threads):10.0%}")
    print(json.dumps({name: list(times) for name, times in phases.items()}))


if __name__ == "__main__":
    main()
