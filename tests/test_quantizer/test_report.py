"""`onnxlm compare`, and the reports of `compare` and `eval`: plots in one file that needs nothing else."""

import json
import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner

from quantizer.evaluation.kl import Model, evaluate
from quantizer.evaluation.layers import find_order, kl_by_layer
from quantizer.evaluation.peers import read_peers
from quantizer.evaluation.plots import Labels, Point, bar_plot, line_plot, point_plot
from quantizer.progress import silent
from runtime.bundle.bundle import open_bundle
from runtime.cli.main import main
from runtime.errors import QuantizationError

PEERS = {"points": [{"who": "llama.cpp", "name": "Q4_K_M", "bits": 6.27, "kl": 0.082, "tokens_per_second": 112}]}
TITLES = ["Size against quality", "KL divergence by position", "KL divergence by layer", "Where the bits went"]


def call(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def int4(tiny_bundle, tmp_path_factory):
    target = tmp_path_factory.mktemp("int4") / "q"
    assert call("quantize", tiny_bundle, "-o", target, "--bits", "4").exit_code == 0
    return target


@pytest.fixture
def text(tmp_path):
    (tmp_path / "t.txt").write_text("some text to measure on, " * 60)
    return tmp_path / "t.txt"


@pytest.fixture
def peers(tmp_path):
    (tmp_path / "peers.json").write_text(json.dumps(PEERS))
    return tmp_path / "peers.json"


def plots(page):
    """Title → the plot as a tree, of every plot of a report."""
    found = re.findall(r"<h2>([^<]*)</h2>\s*(<svg.*?</svg>)", page, re.DOTALL)
    return {title: ET.fromstring(svg) for title, svg in found}


def words(svg):
    return ["".join(node.itertext()).strip() for node in svg.iter("text")]


def test_compare_ranks_size_and_quality(tiny_bundle, int4, text):
    arguments = ["--reference", tiny_bundle, "--text", text, "--repeat", "1", "--json"]
    rows = json.loads(call("compare", int4, tiny_bundle, *arguments).stdout)
    assert rows[0]["nbytes"] < rows[1]["nbytes"]
    assert rows[0]["scores"]["kl"] > rows[1]["scores"]["kl"] == 0
    assert all(row["decode"] > 0 and row["prefill"] > 0 for row in rows)
    assert rows[0]["bytes_by_type"]["int4"] > 0 == rows[1]["bytes_by_type"].get("int4", 0)


def test_compare_without_text_shows_speed(int4):
    done = call("compare", int4, "--repeat", "1")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].split()[:2] == ["bundle", "MiB"]


def test_the_report_of_eval_has_every_plot(tiny_bundle, int4, text, peers, tmp_path):
    html = tmp_path / "report.html"
    done = call("eval", int4, "--reference", tiny_bundle, "--text", text, "--html", html, "--peers", peers)
    assert done.exit_code == 0, done.output
    page = html.read_text()
    found = plots(page)
    assert list(found) == [*TITLES, "Error of the weights by layer"]
    assert {"Q4_K_M", "llama.cpp", "this model", "q", "bits per weight, whole file"} <= set(words(found[TITLES[0]]))
    assert {"0", "1", "head", "KL divergence, nats per token"} <= set(words(found[TITLES[2]]))
    assert {"tables", "0", "1", "rest", "int4", "weights, MiB"} <= set(words(found[TITLES[3]]))
    assert "model.layers.*.mlp.down_proj" in page
    assert "prefers-color-scheme: dark" in page
    assert not any(word in page for word in ("http", "<script", "<link", "<img", "url(http"))


def test_the_report_of_compare_has_every_plot(tiny_bundle, int4, text, peers, tmp_path):
    html = tmp_path / "report.html"
    arguments = ["--reference", tiny_bundle, "--text", text, "--repeat", "1", "--html", html, "--peers", peers]
    assert call("compare", int4, tiny_bundle, *arguments).exit_code == 0
    found = plots(html.read_text())
    assert list(found) == [TITLES[0], "Speed against quality", *TITLES[1:]]
    assert {"q", tiny_bundle.name, "Q4_K_M"} <= set(words(found["Speed against quality"]))
    assert {"q", tiny_bundle.name} <= set(words(found[TITLES[2]]))


@pytest.mark.parametrize(
    "plot",
    [
        line_plot(Labels("a < b", "x", "y"), {"one": ([0, 1], [0.1, 0.2]), "two": ([0, 1], [0.3, 0.2])}),
        point_plot(Labels("t", "x", "y"), [Point("a & b", "w", 1, 0.5), Point("c", "v", 1, 0.5)]),
        bar_plot(Labels("t", "x", "y"), ["<one>", "two"], {"part": [0.5, 1], "other": [1, 0]}),
        bar_plot(Labels("t", "x", "y"), [], {}),
    ],
)
def test_plots_are_well_formed_and_have_axes(plot):
    (svg,) = plots(plot).values()
    shown = words(svg)
    assert {"x", "y"} <= set(shown)
    assert len([word for word in shown if re.fullmatch("[−\\d.]+", word)]) >= 4  # ticks
    named = {node.get("id") for node in svg.iter()} - {None}
    used = set(re.findall(r'(?:href="|url\()#([\w-]+)', ET.tostring(svg, encoding="unicode")))
    assert used <= named
    assert "#0a0b" not in plot  # each colour is the page's


def test_names_of_points_are_apart(tmp_path):
    plot = point_plot(Labels("t", "x", "y"), [Point(name, "w", 5, 0.1) for name in ("first", "second", "third")])
    places = set(re.findall(r'<text style="[^"]*"[^>]*transform="([^"]*)"[^>]*>\w{5,}', plot))
    assert len(places) == 3


def test_a_layer_s_kl_is_that_of_a_model_with_this_layer_quantized(tiny_bundle, int4, tmp_path):
    alone = tmp_path / "alone"
    exclude = ["--exclude", "*embed*", "--exclude", "model.layers.0.*"]
    done = call("quantize", tiny_bundle, "-o", alone, "--bits", "4", *exclude)
    assert done.exit_code == 0, done.output
    float_bundle, quantized = open_bundle(tiny_bundle), open_bundle(alone)
    chunks = np.arange(64).reshape(2, 32) + 3
    found = kl_by_layer(quantized, float_bundle, chunks, silent)
    whole = evaluate(Model(quantized), Model(float_bundle), chunks)
    assert found.layers[0] == found.head == 0
    assert found.layers[1] == pytest.approx(whole.kl, rel=0.35)  # of every second position
    assert found.tokens == 32


def test_reordered_channels_are_found_again():
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((40, 16)).astype(np.float32)
    order = rng.permutation(16)
    noisy = expected[:, order] + 0.05 * rng.standard_normal((40, 16)).astype(np.float32)
    assert list(find_order(noisy, expected)) == list(order)
    assert list(find_order(expected * 1.01, expected)) == list(range(16))


def test_without_matplotlib_the_extra_is_named(int4, tiny_bundle, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = call("eval", int4, "--reference", tiny_bundle, "--text", text, "--html", tmp_path / "r.html")
    assert done.exit_code == 1
    assert "pip install 'onnxlm[report]'" in done.stderr
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"points": [{"who": "x"}]}',
        '{"points": [{"who": "x", "name": "y", "kl": -1}]}',
        '{"points": 3}',
    ],
)
def test_a_file_without_points_is_refused(tmp_path, content):
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(QuantizationError, match="It looks like"):
        read_peers(tmp_path / "p.json")


def test_half_a_request_is_an_error(int4, text, peers):
    done = call("compare", int4, "--text", text)
    assert (done.exit_code, "--reference" in done.stderr) == (1, True)
    done = call("compare", int4, "--peers", peers)
    assert (done.exit_code, "--html" in done.stderr) == (1, True)
