"""`onnxlm inspect`: figures that can be added up by hand."""

import json
from pathlib import Path

import onnx
import pytest
from chat_cases import FOLDER
from click.testing import CliRunner

from runtime.bundle.bundle import open_bundle, write_manifest
from runtime.bundle.inspection import inspect_bundle
from runtime.cli.main import main
from runtime.errors import ExecutionError, IntegrityError
from runtime.ort.session import open_session


@pytest.fixture(scope="module")
def int4_bundle(tiny_bundle, tmp_path_factory) -> Path:
    """The tiny model in 4 bits, written by the command itself."""
    target = tmp_path_factory.mktemp("int4") / "bundle"
    choices = ["--bits", "4", "--group-size", "32", "--asymmetric"]
    done = CliRunner().invoke(main, ["quantize", str(tiny_bundle), "-o", str(target), *choices])
    assert done.exit_code == 0, done.output
    return target


def inspect(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["inspect", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_weights_of_all_modules_are_the_parameters(tiny_bundle):
    facts = json.loads(inspect(str(tiny_bundle), "--json"))
    assert sum(module["weights"] for module in facts["modules"]) == facts["architecture"]["parameters"]
    assert facts["operators"]["decode"]["com.microsoft::GroupQueryAttention"] == 2


def test_bits_of_a_quantized_module(int4_bundle):
    facts = json.loads(inspect(str(int4_bundle), "--json"))
    (o_proj,) = [m for m in facts["modules"] if m["name"] == "model.layers.0.self_attn.o_proj"]
    groups = 64 * 2  # 64 outputs, 64 inputs in groups of 32: a half-precision scale and half a byte of zero point each
    assert o_proj["weights"] == 64 * 64
    assert o_proj["bytes"] == 64 * 64 // 2 + groups * 2 + groups // 2
    assert o_proj["stored"] == "4 bits × 32, asymmetric"


def test_padding_is_not_a_weight(int4_bundle):
    facts = json.loads(inspect(str(int4_bundle), "--json"))
    assert sum(module["weights"] for module in facts["modules"]) == facts["architecture"]["parameters"]


def test_the_text_says_what_matters(int4_bundle):
    text = inspect(str(int4_bundle))
    for words in ("llama", "bits per weight", "model.layers.*.self_attn.qkv_proj", "2 ×", "KV cache", "not measured"):
        assert words in text


def test_how_the_model_calls_tools_and_thinks(tiny_bundle, make_checkpoint, make_bundle):
    assert "none: the chat template has no tools" in inspect(str(tiny_bundle))
    checkpoint = make_checkpoint()
    (checkpoint / "chat_template.jinja").write_text((FOLDER / "qwen3.jinja").read_text(encoding="utf-8"))
    facts = json.loads(inspect(str(make_bundle(checkpoint)), "--json"))["chat"]
    assert facts["tool calls"].startswith(repr('<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}')[:-1])
    assert facts["thoughts"] == r"'<think>\n' … '\n</think>\n\n'"


def test_tensors_lists_every_layer(int4_bundle):
    assert "model.layers.1.mlp.down_proj" in inspect(str(int4_bundle), "--tensors")


def test_verify_finds_a_changed_byte(tiny_bundle, tmp_path):
    assert "recorded size and SHA-256" in inspect(str(tiny_bundle), "--verify")
    for name in open_bundle(tiny_bundle).manifest.files:
        (tmp_path / name).write_bytes((tiny_bundle / name).read_bytes())
    manifest = (tiny_bundle / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(manifest)
    with (tmp_path / "weights.bin").open("r+b") as file:
        file.write(b"\x7f")
    done = CliRunner().invoke(main, ["inspect", str(tmp_path), "--verify"])
    assert done.exit_code == 1
    assert "weights.bin was altered" in done.output


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("location", "../../etc/passwd", "no file of the bundle"),
        ("location", "/etc/passwd", "no file of the bundle"),
        ("offset", str(1 << 40), "from beyond weights.bin"),
    ],
)
def test_a_graph_that_reaches_out_of_the_bundle_is_refused(tiny_bundle, tmp_path, key, value, words):
    bundle = open_bundle(tiny_bundle)
    for name in bundle.manifest.files:
        (tmp_path / name).write_bytes((tiny_bundle / name).read_bytes())
    model = onnx.load(tmp_path / "decode.onnx", load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    next(entry for entry in tensor.external_data if entry.key == key).value = value
    (tmp_path / "decode.onnx").write_bytes(model.SerializeToString())
    write_manifest(tmp_path, bundle.manifest)
    with pytest.raises(IntegrityError, match=words):
        inspect_bundle(open_bundle(tmp_path, verify=True))
    with pytest.raises(ExecutionError):  # ONNX Runtime refuses it too, before it reads anything
        open_session(tmp_path / "decode.onnx")


def test_escape_codes_of_a_bundle_do_not_reach_the_terminal(tiny_bundle, tmp_path):
    for name in open_bundle(tiny_bundle).manifest.files:
        (tmp_path / name).write_bytes((tiny_bundle / name).read_bytes())
    document = json.loads((tiny_bundle / "manifest.json").read_text())
    document["source"]["name"] = "\x1b]0;mine\x07tiny"
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    assert "\x1b" not in inspect(str(tmp_path))
