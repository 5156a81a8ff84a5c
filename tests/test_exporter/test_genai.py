"""`export --format genai`: its graph computes what the bundle's do, by other inputs, over the same file."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from exporter import ExportOptions, export_genai
from exporter.genai.config import genai_config
from quantizer.flow import quantize
from quantizer.presets import PRESETS
from runtime import LLM, SamplingParams
from runtime.bundle.bundle import open_bundle
from runtime.bundle.manifest import Manifest, dump_manifest, parse_manifest
from runtime.cli.main import main
from runtime.errors import BundleError, OptionError, UnsupportedError

PROMPT = [5, 9, 17, 250, 33, 8, 41]


@pytest.fixture(scope="module", params=["float32", "int4", "chunks"])
def bundle(request, tiny_checkpoint, tiny_bundle, make_bundle, tmp_path_factory):
    """Float weights; packed ones; a graph that takes padded chunks."""
    if request.param == "float32":
        return tiny_bundle
    if request.param == "chunks":
        return make_bundle(tiny_checkpoint, target_ort="1.32")
    quantize(tiny_bundle, tmp_path_factory.mktemp("int4") / "bundle", PRESETS["fast"])
    return tmp_path_factory.getbasetemp() / "int40" / "bundle"


@pytest.fixture(scope="module")
def folder(bundle, tmp_path_factory):
    """Of onnxruntime-genai."""
    return export_genai(bundle, tmp_path_factory.mktemp("genai") / "folder", link_weights=True).folder


def session(folder: Path) -> ort.InferenceSession:
    return ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


def empty_past(model: ort.InferenceSession, rows: int) -> dict[str, np.ndarray]:
    return {
        port.name: np.zeros((rows, port.shape[1], 0, port.shape[3]), np.float32)
        for port in model.get_inputs()
        if port.name.startswith("past_key_values.")
    }


def run(model: ort.InferenceSession, ids: list[list[int]], mask: list[list[int]], past: dict[str, np.ndarray]):
    """Logits `[rows, V]`, and the next past."""
    feeds = {"input_ids": np.array(ids), "attention_mask": np.array(mask), **past}
    logits, *presents = model.run(None, feeds)
    assert logits.shape[1] == 1
    return logits[:, 0], dict(zip(past, presents, strict=True))


def test_inputs_are_the_conventional_ones(folder):
    names = [port.name for port in session(folder).get_inputs()]
    assert names[:4] == ["input_ids", "attention_mask", "past_key_values.0.key", "past_key_values.0.value"]
    assert [port.name for port in session(folder).get_outputs()][:2] == ["logits", "present.0.key"]


def test_greedy_tokens_are_those_of_the_bundle(bundle, folder):
    with LLM(bundle) as llm:
        expected = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)).token_ids
    model, ids, found = session(folder), PROMPT, []
    past = empty_past(model, 1)
    for _ in range(12):
        total = len(PROMPT) + len(found)
        logits, past = run(model, [ids], [[1] * total], past)
        ids = [int(logits[0].argmax())]
        found += ids
    assert tuple(found) == expected


def test_shorter_rows_are_read_at_their_own_ends(folder):
    model = session(folder)
    rows, masks = [PROMPT, [7, 3, 2, 2, 2, 2, 2]], [[1] * 7, [1, 1, 0, 0, 0, 0, 0]]
    logits, _ = run(model, rows, masks, empty_past(model, 2))
    alone, _ = run(model, [[7, 3]], [[1, 1]], empty_past(model, 1))
    np.testing.assert_allclose(logits[1], alone[0], rtol=0, atol=1e-5)


def test_checker_and_shape_inference_pass_on_a_copy_which_is_the_default(bundle, tmp_path):
    report = export_genai(bundle, tmp_path / "folder")
    assert (report.linked, report.max_difference) == (False, 0.0)
    onnx.checker.check_model(str(tmp_path / "folder" / "model.onnx"), full_check=True)


def test_weights_are_the_bundles_own_file(bundle, folder):
    assert (folder / "weights.bin").samefile(bundle / "weights.bin")
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.jinja", "genai_config.json", "generation_config.json", "model.onnx", "tokenizer.json",
        "tokenizer_config.json", "weights.bin",
    ]  # fmt: skip


def test_config_says_when_to_stop_and_how_wide_the_cache_is(folder):
    model = json.loads((folder / "genai_config.json").read_text())["model"]
    assert (model["eos_token_id"], model["bos_token_id"], model["context_length"]) == ([2, 0], 1, 256)
    decoder = model["decoder"]
    assert (decoder["num_key_value_heads"], decoder["head_size"], decoder["num_hidden_layers"]) == (2, 16, 2)


def test_a_checkpoint_is_exported_on_the_way(tiny_checkpoint, tmp_path):
    command = ["export", str(tiny_checkpoint), "--format", "genai", "--quantize", "int4", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(main, [*command, "--json"])
    assert json.loads(result.stdout)["max_difference"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_is_replaced_only_when_told(tiny_bundle, tmp_path):
    export_genai(tiny_bundle, tmp_path / "out")
    with pytest.raises(BundleError, match="--overwrite"):
        export_genai(tiny_bundle, tmp_path / "out")
    export_genai(tiny_bundle, tmp_path / "out", ExportOptions(overwrite=True))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_choices_about_a_bundle_come_too_late(tiny_bundle, tmp_path):
    with pytest.raises(OptionError, match="a bundle is taken as it is"):
        export_genai(tiny_bundle, tmp_path / "out", ExportOptions(quantize="int4"))


def changed(manifest: Manifest, kind: str) -> Manifest:
    """The manifest of a model that is like this one but for its cache."""
    text = dump_manifest(manifest)
    if kind == "8 bits":
        text = text.replace(
            '"dtype": "float32",\n  "bytes_per_token": 512', '"dtype": "int8",\n  "bytes_per_token": 128'
        )
        return parse_manifest(re.sub(r'(\w+\.\d\.(key|value)",\s*"dtype": )"float32"', r'\1"int8"', text))
    return parse_manifest(text.replace("past_key_values.1", "past_key_values.2"))


@pytest.mark.parametrize(("kind", "message"), [("8 bits", "values of 8 bits"), ("gaps", "layers without a cache")])
def test_a_cache_without_words_is_refused(tiny_bundle, kind, message):
    with pytest.raises(UnsupportedError, match=message):
        genai_config(changed(open_bundle(tiny_bundle).manifest, kind))


GENERATE = """
import json, sys
import onnxruntime_genai as genai
model = genai.Model(sys.argv[1])
params = genai.GeneratorParams(model)
prompt = json.loads(sys.argv[2])
params.set_search_options(max_length=len(prompt) + 12, min_length=len(prompt) + 12)
generator = genai.Generator(model, params)
generator.append_tokens(prompt)
while not generator.is_done():
    generator.generate_next_token()
print(json.dumps([int(token) for token in generator.get_sequence(0)]))
"""


def test_onnxruntime_genai_generates_the_same(bundle, folder):
    """In a child: it would bring its own threads and its own end of the process."""
    pytest.importorskip("onnxruntime_genai", reason="pip install onnxruntime-genai")
    command = [sys.executable, "-c", GENERATE, str(folder), json.dumps(PROMPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    with LLM(bundle) as llm:
        ours = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12, min_tokens=12)).token_ids
    assert json.loads(done.stdout)[len(PROMPT) :] == list(ours)
