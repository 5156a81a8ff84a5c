"""Draw docs/figures.svg from docs/figures.json: loss against bits per weight, and against speed.

pip install matplotlib
python tests/bench/plot_figures.py
"""

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "onnxlm"  # the same figures, the same file
import matplotlib.pyplot as plt  # noqa: E402  # the backend is chosen first

DOCS = Path(__file__).parents[2] / "docs"
COLOURS = {"onnxlm": "#0b6bcb", "llama.cpp": "#c4441f", "onnxruntime-genai": "#6b7a1e"}
MARKS = {"onnxlm": "o", "llama.cpp": "s", "onnxruntime-genai": "^"}


def main() -> None:
    points = json.loads((DOCS / "figures.json").read_text())["points"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    labels = (("bits", "bits per weight, whole file"), ("tokens_per_second", "tokens per second, one sequence"))
    for axis, (key, label) in zip(axes, labels, strict=True):
        for who, colour in COLOURS.items():
            known = [point for point in points if point["who"] == who and point[key] is not None]
            x, y = [point[key] for point in known], [point["kl"] for point in known]
            axis.scatter(x, y, c=colour, marker=MARKS[who], label=who, zorder=2)
            for point in known:
                axis.annotate(point["name"], (point[key], point["kl"]), (5, 4), textcoords="offset points", fontsize=8)
        axis.set(xlabel=label, yscale="log")
        axis.grid(alpha=0.3)
        axis.margins(x=0.28, y=0.12)
    axes[0].set_ylabel("KL divergence, nats per token")
    axes[1].legend(loc="lower left", fontsize=8)
    figure.savefig(DOCS / "figures.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
