"""Measure everything that docs/performance.md shows beside other runtimes, and write its tables and plots.

    python tests/bench/performance.py --small smol-int4 --large 1.2b-int4 --llama-bin llama.cpp/build/bin \\
        --small-gguf smol-q4_0.gguf smol-q4_k_m.gguf --large-gguf 1.2b-q4_0.gguf --rounds 7

Two cores take about 8 minutes for the small model and 30 for one of 1.2 billion parameters, whose random weights
`tests/bench/scale_shapes.py` writes. Nothing else may run meanwhile. Peers take turns in every round: see peers.py.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
CASES = ["--prompts", "128", "512", "--batches", "1", "4", "8", "16", "32"]


def measure(bundle: Path, gguf: list[Path], options: argparse.Namespace) -> Path:
    """Run peers.py for one size; the file with every round's figures."""
    figures = options.page.with_name(f"speed-{bundle.name}.json")
    command = [sys.executable, HERE / "peers.py", "--int4", bundle, "--rounds", str(options.rounds), *CASES]
    command += ["--pasts", *map(str, options.pasts), "--markdown", options.page, "--json", figures]
    if gguf:
        command += ["--gguf", *gguf]
        command += ["--llama-bin", options.llama_bin] if options.llama_bin else []
        command += ["--openvino"] if options.openvino else []
    if options.source and bundle == options.small:  # genai's builder needs the weights that ours came from
        command += ["--source", options.source, "--without", "transformers"]
    subprocess.run([str(word) for word in command], check=True)
    return figures


def plot(figures: Path) -> Path:
    """Tokens per second of every engine and case, as bars; an SVG file beside the figures."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    rows = json.loads(figures.read_text())
    cases = list(dict.fromkeys((row["phase"], row["batch"]) for row in rows))
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    speeds = {(row["engine"], row["phase"], row["batch"]): median(row["tokens_per_second"]) for row in rows}
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    for number, engine in enumerate(engines):
        places = [place + 0.8 * number / len(engines) for place in range(len(cases))]
        axes.bar(places, [speeds.get((engine, *case), 0) for case in cases], 0.8 / len(engines), label=engine)
    axes.set_xticks([place + 0.4 for place in range(len(cases))], [f"{phase}\n{batch}" for phase, batch in cases])
    axes.set_yscale("log")
    axes.set_ylabel("tokens per second")
    axes.legend(frameon=False)
    target = figures.with_suffix(".svg")
    figure.savefig(target, metadata={"Date": None})
    return target


def main() -> None:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=Path, required=True, help="our bundle of the small model")
    parser.add_argument("--large", type=Path, help="our bundle of the large model")
    parser.add_argument("--small-gguf", type=Path, nargs="*", default=[], help="files of the small model for llama.cpp")
    parser.add_argument("--large-gguf", type=Path, nargs="*", default=[], help="files of the large model for llama.cpp")
    parser.add_argument("--llama-bin", type=Path, metavar="FOLDER", help="where llama-batched-bench is")
    parser.add_argument("--openvino", action="store_true", help="OpenVINO GenAI on the GGUF files, too")
    parser.add_argument("--source", type=Path, help="the small model's checkpoint: adds onnxruntime-genai")
    parser.add_argument("--pasts", type=int, nargs="*", default=[4096], help="tokens that decode goes on behind")
    parser.add_argument("--page", type=Path, default=Path("docs/performance.md"))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for bundle, gguf in ((options.small, options.small_gguf), (options.large, options.large_gguf)):
        if bundle:
            show(plot(measure(bundle, gguf, options)), bundle.name, options.page)


def show(picture: Path, name: str, page: Path) -> None:
    """Put a plot at the end of its section of the page."""
    end = f"<!-- end: {name} -->"
    shown = f"![Tokens per second of {name} and others]({picture.name})"
    page.write_text(page.read_text(encoding="utf-8").replace(end, f"\n{shown}\n{end}"), encoding="utf-8")


if __name__ == "__main__":
    main()
