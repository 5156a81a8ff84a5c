"""Nothing in a checkpoint is left out without a word: known no-ops, what the user names, and all else an error."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from exporter.checkpoint import open_checkpoint
from exporter.export import ExportOptions, export
from models.families.defaults import complete_text_config
from runtime.errors import CheckpointError, OnnxlmError, OptionError, UnsupportedError


def add_tensor(folder, name):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {name: np.ones(4, np.float32)}, folder / "model.safetensors")


def add_key(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.mark.parametrize(
    "name",
    ["v_head.summary.weight", "model.layers.0.self_attn.rotary_emb.cos_cached", "model.position_ids"],
)
def test_harmless_tensors(make_checkpoint, name):
    folder = make_checkpoint()
    add_tensor(folder, name)
    assert name not in open_checkpoint(folder).tensors


def test_a_head_of_labels_beside_a_language_model_is_not_used(make_checkpoint, tmp_path):
    folder = make_checkpoint()
    add_tensor(folder, "score.weight")
    export(folder, tmp_path / "out", ExportOptions(verify="none"))


def test_tensors_that_the_user_names(make_checkpoint, tmp_path):
    folder = make_checkpoint()
    add_tensor(folder, "aux.0.weight")
    with pytest.raises(CheckpointError, match=r"pass --ignore-tensor 'aux\.0\.weight' if it does not matter"):
        export(folder, tmp_path / "out", ExportOptions(verify="none"))
    export(folder, tmp_path / "out", ExportOptions(verify="none", ignore_tensors=("aux.*",)))
    with pytest.raises(OptionError, match=r"the checkpoint has no tensor 'axu\.\*'"):
        export(folder, tmp_path / "other", ExportOptions(verify="none", ignore_tensors=("axu.*",)))


HARMLESS = {"_attn_implementation_autoset": True, "loss_type": "ForCausalLM", "keys_to_ignore_at_inference": ["x"],
            "use_flash_attn": True, "quantization": {"group_size": 64, "bits": 4}}  # fmt: skip


def test_harmless_keys(make_checkpoint, tmp_path):
    folder = make_checkpoint()
    add_key(folder, **HARMLESS)
    export(folder, tmp_path / "out", ExportOptions(verify="none"))


NAMES = st.text("abcdefgh_", min_size=3, max_size=12)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    NAMES, st.sampled_from(["{}.weight", "model.{}.weight", "model.layers.0.{}.weight", "model.layers.1.mlp.{}.bias"])
)
def test_any_other_tensor_is_an_error(tiny_checkpoint, make_checkpoint, tmp_path_factory, name, place):
    folder = make_checkpoint()
    add_tensor(folder, place.format(name))
    with pytest.raises(OnnxlmError, match=name):
        export(folder, tmp_path_factory.mktemp("out") / "out", ExportOptions(verify="none"))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES, st.sampled_from([1, "x", [1], True]))
def test_any_other_key_is_an_error(make_checkpoint, tmp_path_factory, name, value):
    folder = make_checkpoint()
    add_key(folder, **{f"zz{name}": value})
    with pytest.raises(UnsupportedError, match=f"unknown key 'zz{name}'"):
        export(folder, tmp_path_factory.mktemp("out") / "out", ExportOptions(verify="none"))


# Text models inside others


def test_a_minimal_text_config():
    complete = complete_text_config({"hidden_size": 2560}, "gemma3")
    assert (complete["model_type"], complete["hidden_size"], complete["num_attention_heads"]) == (
        "gemma3_text",
        2560,
        8,
    )
