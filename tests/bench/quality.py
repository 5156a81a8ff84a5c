"""What quantization costs at each size, beside peers on the same tokens: the table in the README.

    python tests/bench/offgrid.py smol demo/offgrid
    python tests/bench/quality.py demo/offgrid --calibration mixed.txt --second other.txt --work demo/quality

Rows are budgets in bits per weight (`5.0`) or in time (`time avx512 0.93`), `int8`, groups of 32 with outliers
(`g32 +auto`, `g32 +0`), and the peers that are installed. A row is made by the package's own `quantize`, and compared
with the float bundle over 16 chunks of 512 tokens: `pydoc_data.topics` of CPython 3.11, joined by empty lines in the
order of their keys, characters 200,000 to 290,000; and over 4 chunks of --second. Bits per weight are those of
weights.bin. Calibration and sensitivity run once for a bundle and a text and are kept in --work, as are bundles and
figures: a run that was ended goes on, and `--again ROW` forgets a row.
"""

import argparse
import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from peers import Onnxlm, measure
from quality_peers import PEERS, genai

from quantizer.calibration.data import read_chunks
from quantizer.evaluation.kl import Model, evaluate
from quantizer.flow import quantize
from quantizer.presets import Storage, make_recipe
from quantizer.recipe import Recipe
from runtime.bundle.bundle import Bundle, open_bundle
from runtime.text.tokenizer import Tokenizer

TOPICS, CHUNKS, SECOND, LENGTH = slice(200_000, 290_000), 16, 4, 512
ROWS = ["rtn g32", "rtn g128", "4.25", "4.5", "4.6", "5.0", "5.5", "6.2", "int8"]
FIGURES = {"KL": "kl", "late half": "kl_late", "99 %": "kl_p99", "top-1": "top1", "perplexity": "perplexity"}


def recipe_of(row: str, calibration: str) -> Recipe:
    """What a row asks for."""
    if row.startswith("rtn"):
        return make_recipe(method="rtn", storage=Storage(bits=4, group_size=int(row.removeprefix("rtn g"))))
    if row == "int8":
        return make_recipe(method="gptq", storage=Storage(bits=8), calibration=calibration)
    if row.startswith("g32 +"):
        count = row.removeprefix("g32 +")
        storage = Storage(bits=4, residual_channels="auto" if count == "auto" else int(count))
        return make_recipe(method="gptq", storage=storage, calibration=calibration)
    if row.startswith("time "):
        target, time = row.removeprefix("time ").split()
        return make_recipe(time=float(time), costs=target, calibration=calibration)
    return make_recipe(budget=float(row), calibration=calibration)


class Kept:
    """The float model; what its head reads is kept on disk, for it is needed again for every row."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        self._model = Model(bundle)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def hidden(self, ids: np.ndarray) -> np.ndarray:
        path = self._folder / f"{_name(ids)}.npy"
        if not path.exists():
            np.save(path, self._model.hidden(ids))
        return np.load(path)

    def log_probabilities(self, rows: np.ndarray) -> np.ndarray:
        return self._model.log_probabilities(rows)


def texts(bundle: Bundle, second: Path | None) -> dict[str, np.ndarray]:
    """Name → `[chunks, LENGTH]`."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[key] for key in sorted(topics))[TOPICS]
    ids = Tokenizer(bundle.path("tokenizer.json"), bundle.manifest.tokens.special).encode(
        text, add_special_tokens=False
    )
    found = {"topics": np.array(ids[: CHUNKS * LENGTH], np.int64).reshape(CHUNKS, LENGTH)}
    if second:
        found[second.name] = read_chunks(second, bundle, SECOND * LENGTH, LENGTH)
    return found


def make_row(row: str, bundle: Path, calibration: str, work: Path) -> tuple[Any, float, float]:
    """A model to evaluate, its bits per weight, and the seconds that it took to make."""
    target = work / row.replace(" ", "-")
    started = time.monotonic()
    if row in PEERS or row.startswith("genai "):
        model, nbytes = PEERS[row](bundle, target) if row in PEERS else genai(Path(row.removeprefix("genai ")))
        parameters = open_bundle(bundle).manifest.architecture.parameters
        return model, 8 * nbytes / parameters, time.monotonic() - started
    if not target.exists():
        quantize(bundle, target, recipe_of(row, calibration), work=work / "calibration")
    made = open_bundle(target)
    size = made.manifest.files["weights.bin"].size
    return Model(made), 8 * size / made.manifest.architecture.parameters, time.monotonic() - started


def main() -> None:
    """Parse the command line, make what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="float bundle")
    parser.add_argument("--calibration", default="self", help="self, or text that shares no line with the others")
    parser.add_argument("--second", type=Path, help="another text to measure on")
    parser.add_argument(
        "--rows", nargs="*", default=ROWS, help=f"of {ROWS}, other budgets, peers: {[*PEERS]}, and 'genai FOLDER'"
    )
    parser.add_argument("--again", nargs="*", default=[], metavar="ROW", help="rows to forget first")
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="fewer for a quick look, which is not kept")
    parser.add_argument("--speed", action="store_true", help="also compare speeds of our rows with the first's")
    parser.add_argument("--work", type=Path, default=Path("demo/quality"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    log = options.work / "figures.json"
    figures: dict[str, Any] = json.loads(log.read_text()) if log.exists() else {}
    bundle = open_bundle(options.bundle)
    reference = Kept(bundle, options.work / "reference")
    chosen = {name: chunks[: options.chunks] for name, chunks in texts(bundle, options.second).items()}
    for row in options.rows:
        if row in options.again:
            figures.pop(row, None)
            shutil.rmtree(options.work / row.replace(" ", "-"), ignore_errors=True)
        entry = figures.get(row, {})
        missing = [name for name in chosen if name not in entry]
        if missing:
            model, entry["bits"], entry["seconds"] = make_row(row, options.bundle, options.calibration, options.work)
        for name in missing:
            entry[name] = asdict(evaluate(model, reference, chosen[name]))
            print(table({row: entry}, [name]).splitlines()[-1], flush=True)
            figures[row] = entry
            if options.chunks == CHUNKS:
                log.write_text(json.dumps(figures, indent=1))
    print(table({row: figures[row] for row in options.rows}, list(chosen)))
    if options.speed:
        print(speeds([options.work / row.replace(" ", "-") for row in options.rows], bundle))


def speeds(folders: list[Path], source: Bundle, rounds: int = 7) -> str:
    """Tokens per second of bundles that take turns, each as a ratio to the first in the same round, medians."""
    found = {folder.name: Onnxlm(folder) for folder in folders}
    rates = measure(found, rounds, source.manifest.architecture.vocab_size)
    lines = []
    for (name, phase, batch), own in rates.items():
        ratio = median(a / b for a, b in zip(own, rates[folders[0].name, phase, batch], strict=True))
        lines.append(f"{name:12} {phase:8} batch {batch}: {median(own):8.1f} tokens/s, {ratio:.2f}x {folders[0].name}")
    return "\n".join(lines)


def table(figures: dict[str, Any], names: list[str]) -> str:
    """Markdown, one line a row, a block of figures a text."""
    heads = [f"{name} {figure}" for name in names for figure in FIGURES]
    lines = ["| row | bits | " + " | ".join(heads) + " |", "|" + "---|" * (len(heads) + 2)]
    for row, entry in figures.items():
        cells = [f"{entry[name][key]:.4f}" for name in names for key in FIGURES.values()]
        lines.append(f"| {row} | {entry['bits']:.3f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _name(ids: np.ndarray) -> str:
    from hashlib import sha256

    return sha256(ids.tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    main()
