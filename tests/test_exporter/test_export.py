"""The flow from checkpoint to bundle: what it writes, what it refuses, and that nothing is left of a failure."""

import importlib.metadata
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file, save_file

from exporter.export import ExportOptions, export
from models.decoder import rope
from runtime.bundle.bundle import open_bundle
from runtime.errors import BundleError, CheckpointError, UnsupportedError, VerificationError

UNVERIFIED = ExportOptions(verify="none")


@pytest.fixture
def checkpoint(make_checkpoint):
    """A checkpoint of this test's own, to damage."""
    return make_checkpoint()


def edit_tensors(checkpoint, edit):
    tensors = load_file(checkpoint / "model.safetensors")
    edit(tensors)
    save_file(tensors, checkpoint / "model.safetensors")


def test_bundle_is_complete_and_intact(tiny_bundle):
    bundle = open_bundle(tiny_bundle, verify=True)
    assert set(bundle.manifest.files) >= {
        "prefill.onnx",
        "decode.onnx",
        "weights.bin",
        "tokenizer.json",
        "chat_template.jinja",
    }
    assert bundle.manifest.tokens.eos == (2, 0)
    assert bundle.manifest.architecture.context_length == 256


def test_parameters_count_each_weight_once(tiny_bundle, tiny_checkpoint):
    tensors = load_file(tiny_checkpoint / "model.safetensors").values()
    assert open_bundle(tiny_bundle).manifest.architecture.parameters == sum(tensor.size for tensor in tensors)


def test_both_graphs_pass_the_checker_and_share_one_file(tiny_bundle):
    for name in ("prefill.onnx", "decode.onnx"):
        onnx.checker.check_model(str(tiny_bundle / name), full_check=True)
        model = onnx.load(tiny_bundle / name, load_external_data=False)
        large = [i for i in model.graph.initializer if i.data_location == onnx.TensorProto.EXTERNAL]
        assert {entry.value for i in large for entry in i.external_data if entry.key == "location"} == {"weights.bin"}


def test_nodes_are_named_like_the_module_tree(tiny_bundle):
    nodes = {node.name: node.op_type for node in onnx.load(tiny_bundle / "decode.onnx").graph.node}
    assert nodes["model.layers.1.self_attn.o_proj"] == "MatMul"
    assert nodes["model.layers.1.self_attn"] == "GroupQueryAttention"


def test_equal_head_is_tied(make_checkpoint, make_bundle):
    checkpoint = make_checkpoint(tie_word_embeddings=False)
    edit_tensors(checkpoint, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    names = [
        i.name for i in onnx.load(make_bundle(checkpoint) / "decode.onnx", load_external_data=False).graph.initializer
    ]
    assert "lm_head.weight" not in names


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "no tensor 'model.layers.1.mlp.up_proj.weight'"),
        (lambda t: t.update({"model.extra": np.ones(3, np.float32)}), "'model.extra' would not be used"),
        (lambda t: t.update({"model.norm.weight": np.ones(3, np.float32)}), r"model.norm.weight needs \[64\]"),
        (lambda t: t["model.norm.weight"].fill(np.nan), "NaN"),
    ],
)
def test_wrong_tensor_is_named_and_nothing_is_left(checkpoint, tmp_path, edit, message):
    edit_tensors(checkpoint, edit)
    with pytest.raises(CheckpointError, match=message):
        export(checkpoint, tmp_path / "bundle", UNVERIFIED)
    assert not list(tmp_path.iterdir())


def test_unsupported_model_is_refused(checkpoint, tmp_path):
    config = json.loads((checkpoint / "config.json").read_text()) | {"model_type": "mamba9"}
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="mamba9"):
        export(checkpoint, tmp_path / "bundle", UNVERIFIED)


def test_failed_verification_leaves_nothing(checkpoint, tmp_path, monkeypatch):
    read_rope = rope.read_rope
    wrong = lambda *args, **kwargs: replace(read_rope(*args, **kwargs), factor=1.1)  # noqa: E731
    monkeypatch.setattr("models.decoder.skeleton.read_rope", wrong)
    with pytest.raises(VerificationError, match="differ from transformers"):
        export(checkpoint, tmp_path / "bundle", ExportOptions(verify="transformers"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["transformers", "self-consistency"])
def test_verification_is_recorded(tiny_checkpoint, tmp_path, method):
    report = export(tiny_checkpoint, tmp_path / "bundle", ExportOptions(verify=method))
    assert report.manifest.verification.method == method
    assert report.manifest.verification.max_difference < 1e-4


def test_existing_bundle_is_kept_unless_told(tiny_checkpoint, tmp_path):
    export(tiny_checkpoint, tmp_path / "bundle", UNVERIFIED)
    with pytest.raises(BundleError, match="--overwrite"):
        export(tiny_checkpoint, tmp_path / "bundle", UNVERIFIED)
    export(tiny_checkpoint, tmp_path / "bundle", ExportOptions(verify="none", overwrite=True))
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_exporting_needs_no_torch(tiny_checkpoint, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from exporter.export import export, ExportOptions\n"
        f"export({str(tiny_checkpoint)!r}, {str(tmp_path / 'bundle')!r}, ExportOptions(verify='self-consistency'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_cuda_graphs_compute_in_float16(tiny_checkpoint, tmp_path):
    manifest = export(tiny_checkpoint, tmp_path / "bundle", ExportOptions(target="cuda")).manifest
    assert (manifest.target.provider, manifest.target.dtype) == ("cuda", "float16")
    assert manifest.verification.method == "none"


def test_viewers_see_who_wrote_a_graph_and_what_it_is(tiny_bundle):
    model = ir.load(tiny_bundle / "prefill.onnx")
    assert (model.producer_name, model.producer_version) == ("onnxlm", importlib.metadata.version("onnxlm"))
    assert "llama model: 2 layers, hidden size 64" in model.doc_string
    assert model.metadata_props["context_length"] == "256"
    names = [node.name for node in model.graph]
    assert {"model.layers.1.self_attn.qkv_proj", "model.layers.1.mlp.down_proj", "lm_head"} <= set(names)
