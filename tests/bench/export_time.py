"""Seconds that `export` takes to write both graphs of a checkpoint, after imports and without verification.

    python tests/bench/export_time.py demo/SmolLM2-135M-Instruct.Q4_1.gguf

A first export, which imports all that is needed, is not counted.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

from exporter import ExportOptions, export


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    taken = []
    for _ in range(options.repeats + 1):
        with tempfile.TemporaryDirectory(dir=".") as folder:  # the disk that the user would write to
            report = export(options.source, Path(folder) / "bundle", ExportOptions(verify="none"))
        taken.append(report.export_seconds)
    print(f"{median(taken[1:]):.2f} s ({min(taken[1:]):.2f} to {max(taken[1:]):.2f})")


if __name__ == "__main__":
    main()
