"""A run that is killed at random moments, again and again, ends with the bytes of one that is left alone.

python tests/bench/killed.py smol --kills 10 --seed 0        # a bundle with float weights, or a checkpoint
python tests/bench/killed.py smol --calibration-tokens 2048  # shorter

Moments are drawn evenly from the time that the undisturbed run took; each attempt goes on where the last was killed.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COMMAND = [sys.executable, "-c", "from runtime.cli.main import main; main()", "quantize"]


def attempt(source: Path, target: Path, options: list[str], seconds: float | None) -> bool:
    """Whether a run ended by itself within `seconds`; it is killed otherwise."""
    process = subprocess.Popen(
        [*COMMAND, str(source), "-o", str(target), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return target.is_dir()  # it appears whole, just before the end
    if process.returncode:
        raise SystemExit(f"a run failed with exit code {process.returncode}: {said}")
    return True


def main() -> None:
    """Run once, then with kills; compare every file, the manifest included."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calibration-tokens", type=int, default=8192)
    chosen = parser.parse_args()
    options = ["--calibration-tokens", str(chosen.calibration_tokens)]
    folder, rng = Path(tempfile.mkdtemp(prefix="onnxlm-killed-")), np.random.default_rng(chosen.seed)
    try:
        started = time.monotonic()
        attempt(chosen.source, folder / "whole", options, None)
        whole = time.monotonic() - started
        print(f"undisturbed: {whole:.1f} s", flush=True)
        for kill in range(chosen.kills):
            seconds = float(rng.uniform(0, whole))
            ended = attempt(chosen.source, folder / "killed", options, seconds)
            print(f"{kill + 1}: {'ended before' if ended else 'killed after'} {seconds:.1f} s", flush=True)
            if ended:  # the next ones disturb a new run
                _require_same(folder / "whole", folder / "killed")
                shutil.rmtree(folder / "killed")
        attempt(chosen.source, folder / "killed", options, None)
        _require_same(folder / "whole", folder / "killed")
        left = sorted(path.name for path in folder.iterdir())
        print("the same bytes; nothing else is left" if left == ["killed", "whole"] else f"left behind: {left}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_same(whole: Path, killed: Path) -> None:
    for path in sorted(whole.iterdir()):
        if path.read_bytes() != (killed / path.name).read_bytes():
            raise SystemExit(f"{path.name} differs")


if __name__ == "__main__":
    main()
