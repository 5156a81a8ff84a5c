"""Memory and start of whole processes on a prepared bundle: the first, and a second one beside it.

    python tests/bench/resident.py demo/int4 --starts 5

Resident bytes are those of /proc/PID/smaps_rollup after a short answer of one sequence, shared pages of files included.
What a second process adds are its private pages: all others it shares with the first one. A start is a whole process
until its first token, files in the page cache. Linux only.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

CHILD = """
import sys
from runtime import LLM, EngineOptions
with LLM(sys.argv[1], options=EngineOptions(max_concurrency=1)) as llm:
    llm.generate([5, 6, 7], max_tokens=1, ignore_eos=True)
    print("first", flush=True)
    llm.generate(list(range(1, 17)), max_tokens=8, ignore_eos=True)
    print("ready", flush=True)
    sys.stdin.readline()
"""


class Process:
    """One process with a model; `seconds` until its first token."""

    def __init__(self, bundle: Path) -> None:
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD, bundle], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._wait_for("first")
        self.seconds = time.perf_counter() - started
        self._wait_for("ready")

    def _wait_for(self, word: str) -> None:
        if self._process.stdout is None or self._process.stdout.readline().strip() != word:
            raise SystemExit(f"the process ended with status {self._process.wait()}")

    def memory(self) -> dict[str, int]:
        """Bytes by the kernel's names: Rss, Anonymous, Private_Clean, Private_Dirty …"""
        lines = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines()[1:]
        return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}

    def end(self) -> None:
        """Let it go."""
        self._process.communicate("\n")


def main() -> None:
    """Parse the command line, measure, print."""
    from runtime.bundle.bundle import open_bundle
    from runtime.ort.prepared import weights as prepared

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--starts", type=int, default=5, help="processes whose start is timed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bundle = open_bundle(options.bundle)
    packed = prepared.packed_bytes(prepared.find(bundle) or prepared.make(bundle))
    starts = []
    for _ in range(options.starts):
        process = Process(options.bundle)
        starts.append(process.seconds)
        process.end()
    first = Process(options.bundle)
    alone = first.memory()
    second = Process(options.bundle)
    beside = second.memory()
    second.end()
    first.end()
    found = {
        "packed": packed, "resident": alone["Rss"], "limit": int(1.1 * packed) + (150 << 20),
        "anonymous": alone["Anonymous"], "second_adds": beside["Private_Clean"] + beside["Private_Dirty"],
        "first_token": round(median(starts), 2),
    }  # fmt: skip
    if options.json:
        print(json.dumps(found))
        return
    sizes = {name: f"{value / 1e6:.0f} MB" for name, value in found.items() if name != "first_token"}
    print(f"packed {sizes['packed']}; resident {sizes['resident']} (1.1 x packed + 150 MiB: {sizes['limit']}), of it")
    print(f"anonymous {sizes['anonymous']}; a second process adds {sizes['second_adds']}")
    print(f"first token of a whole process after {found['first_token']} s, median of {options.starts}")


if __name__ == "__main__":
    main()
