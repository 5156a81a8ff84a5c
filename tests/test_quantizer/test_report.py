"""`onnxlm compare`, and reports that need nothing but themselves."""

import json
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from quantizer.evaluation.plots import bar_plot, line_plot, scatter_plot
from runtime.cli.main import main


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


def test_compare_ranks_size_and_quality(tiny_bundle, int4, text):
    arguments = ["--reference", tiny_bundle, "--text", text, "--repeat", "1", "--json"]
    rows = json.loads(call("compare", int4, tiny_bundle, *arguments).stdout)
    assert rows[0]["nbytes"] < rows[1]["nbytes"]
    assert rows[0]["scores"]["kl"] > rows[1]["scores"]["kl"] == 0
    assert all(row["decode"] > 0 and row["prefill"] > 0 for row in rows)


def test_compare_without_text_shows_speed(int4):
    done = call("compare", int4, "--repeat", "1")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].split()[:2] == ["bundle", "MiB"]


def test_reports_stand_alone(tiny_bundle, int4, text, tmp_path):
    html = tmp_path / "report.html"
    assert call("eval", int4, "--reference", tiny_bundle, "--text", text, "--html", html).exit_code == 0
    page = html.read_text()
    assert page.count("<svg") == 2
    assert "down_proj" in page
    assert not any(word in page for word in ("http", "<script", "<link", "<img"))


@pytest.mark.parametrize(
    "svg",
    [
        line_plot("a < b", [0, 1], [0.1, 0.2], "x", "y"),
        scatter_plot("t", [1], [0], ["a & b"], "x", "y"),
        bar_plot("t", ["<one>"], [0.5], "y"),
        bar_plot("t", [], [], "y"),
    ],
)
def test_plots_are_well_formed(svg):
    assert ET.fromstring(svg).tag == "svg"


def test_half_a_request_is_an_error(int4, text):
    done = call("compare", int4, "--text", text)
    assert done.exit_code == 1
    assert "--reference" in done.stderr
