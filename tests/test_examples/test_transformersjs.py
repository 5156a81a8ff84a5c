"""transformers.js loads our folder unmodified, in Node and in a browser, and gives the engine's tokens."""

import functools
import json
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import onnx_ir as ir
import pytest
from browser import Browser, needs_browser, running_driver

import runtime
from exporter.transformersjs.folder import export_transformersjs
from quantizer.flow import quantize
from quantizer.presets import Storage, make_recipe
from runtime.errors import UnsupportedError

BROWSER = Path(__file__).parents[2] / "examples" / "browser"
INSTALLED = (BROWSER / "node_modules" / "@huggingface" / "transformers").is_dir()
needs_package = pytest.mark.skipif(not INSTALLED, reason="`make examples` installs @huggingface/transformers")
PROMPT = list(range(3, 25))


@pytest.fixture(scope="module")
def folders(tiny_bundle, tmp_path_factory):
    """(bundle, its folder for transformers.js, dtype), in float and in 4 bits."""
    base = tmp_path_factory.mktemp("models")
    quantize(tiny_bundle, base / "packed", make_recipe(method="rtn", storage=Storage(bits=4, group_size=32)))
    found = []
    for bundle, dtype in ((tiny_bundle, "fp32"), (base / "packed", "q4")):
        report = export_transformersjs(bundle, base / f"js-{dtype}")
        assert report.max_difference is not None
        assert report.max_difference < 1e-4
        found.append((bundle, report.folder, dtype))
    return found


def greedy(bundle: Path) -> str:
    with runtime.LLM(bundle) as llm:
        return ",".join(map(str, llm.generate(PROMPT, max_tokens=12, temperature=0.0, ignore_eos=True).token_ids))


@needs_package
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("place", [0, 1])
def test_node_gives_the_engine_s_tokens(folders, place):
    bundle, folder, dtype = folders[place]
    command = ["node", "generate.mjs", str(folder), dtype, "12", ",".join(map(str, PROMPT))]
    done = subprocess.run(command, cwd=BROWSER, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == greedy(bundle), done.stderr


def test_weights_are_cut_at_tensors_where_they_are_large(tiny_bundle, tmp_path):
    report = export_transformersjs(tiny_bundle, tmp_path / "js", max_data_bytes=100_000)
    files = sorted((tmp_path / "js" / "onnx").glob("model.onnx_data*"))
    assert report.data_files == len(files) > 2
    assert report.max_difference == 0.0
    config = json.loads((tmp_path / "js" / "config.json").read_text())
    assert config["transformers.js_config"]["use_external_data_format"] == {"model.onnx": len(files)}


def test_an_empty_cache_can_be_made_from_the_names_of_sizes(folders):
    graph = ir.load(folders[0][1] / "onnx" / "model.onnx").graph
    past = next(value for value in graph.inputs if value.name == "past_key_values.0.key")
    assert [str(size) for size in past.shape] == ["batch_size", "2", "past", "16"]


def test_what_it_has_no_words_for_is_refused(make_bundle, make_checkpoint, tmp_path):
    with pytest.raises(UnsupportedError, match="give a bundle for the CPU"):
        export_transformersjs(make_bundle(make_checkpoint(), target="cuda", verify="none"), tmp_path / "js")
    assert not (tmp_path / "js").exists()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@needs_package
@needs_browser
def test_a_browser_gives_the_engine_s_tokens(folders, tmp_path):
    bundle, folder, dtype = folders[0]  # WebAssembly's 8-bit products differ in the last bits, and so do close choices
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_bytes((BROWSER / "index.html").read_bytes())
    (site / "node_modules").symlink_to(BROWSER / "node_modules")
    (site / "models").symlink_to(folder.parent)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ids = ",".join(map(str, PROMPT))
    with running_driver(tmp_path / "log") as driver:
        browser = Browser(driver, tmp_path / "profile")
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/?model={folder.name}&dtype={dtype}&ids={ids}")
        browser.wait("document.querySelector('#answer').textContent !== ''", 60)
        answer = browser.text("#answer")
        browser.close()
    server.shutdown()
    server.server_close()
    assert answer == greedy(bundle)
