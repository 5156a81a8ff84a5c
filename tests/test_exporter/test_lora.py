"""Adapters: what PEFT's own model computes, for each of its settings; and nothing in an adapter is left out."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from exporter.checkpoint import open_checkpoint
from exporter.verify.reference import reference_logits
from runtime.errors import CheckpointError, UnsupportedError

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")

IDS = [3, 7, 11, 250, 5, 3, 9]


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def train(folder: Path, adapter: Path, **settings: Any) -> Path:
    """An adapter as PEFT saves it, its trained parts moved at random."""
    settings = {"target_modules": ["q_proj", "down_proj"], "r": 4, "lora_alpha": 8} | settings
    model = peft.get_peft_model(load(folder), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(adapter)
    return adapter


def peft_logits(folder: Path, *adapters: Path) -> np.ndarray:
    """Of PEFT's model with the first adapter, not merged: merging changes both sides of a tied head."""
    model = load(folder)
    for adapter in adapters[:-1]:
        model = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
    model = peft.PeftModel.from_pretrained(model, adapters[-1]).eval()
    with torch.inference_mode():
        return model(input_ids=torch.tensor([IDS])).logits[0].numpy()


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "dora of an embedding": {"use_dora": True, "target_modules": ["q_proj", "embed_tokens"]},
    "rank pattern": {"rank_pattern": {"down_proj": 2}},
    "alternatives": {
        "rank_pattern": {"q_proj|k_proj": 2, r"^model\.layers\.0\.mlp\.down_proj": 8},
        "alpha_pattern": {"k_proj|q_proj": 32, "layers.1.mlp.down_proj": 1},
    },
    "saved norms": {"modules_to_save": ["norm"]},
    "tokens": {"trainable_token_indices": [3, 250]},
    "tokens of a module": {"trainable_token_indices": {"embed_tokens": [3, 250]}},
    "tokens of the head": {"trainable_token_indices": {"lm_head": [3, 250]}},
    "tokens of both": {"trainable_token_indices": {"embed_tokens": [3, 9], "lm_head": [5, 250]}},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "embedding and head": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "kept tied": {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True},
    "saved embedding": {"modules_to_save": ["embed_tokens"]},
    "saved head": {"modules_to_save": ["lm_head"]},
    "saved both": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "mica": {"init_lora_weights": "mica"},
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora"},
    "pissa rslora": {"init_lora_weights": "pissa", "use_rslora": True, "rank_pattern": {"down_proj": 2}},
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
def test_adapters_compute_what_peft_computes(make_checkpoint, tmp_path, name, tied):
    folder = make_checkpoint(tie_word_embeddings=tied)
    adapter = train(folder, tmp_path, **SETTINGS[name])
    ours, theirs = reference_logits(open_checkpoint(folder, lora=adapter), IDS), peft_logits(folder, adapter)
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max())
    assert np.abs(theirs - reference_logits(open_checkpoint(folder), IDS)).max() > 0.1


@pytest.mark.parametrize(
    "settings", [{"lora_bias": True, "target_modules": ["q_proj"]}, {"bias": "all"}, {"bias": "lora_only"}]
)
def test_biases(make_checkpoint, tmp_path, settings):
    folder = make_checkpoint(attention_bias=True, mlp_bias=True)
    adapter = train(folder, tmp_path, **settings)
    ours, theirs = reference_logits(open_checkpoint(folder, lora=adapter), IDS), peft_logits(folder, adapter)
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max())


def test_several_adapters_are_merged_in_order(make_checkpoint, tmp_path):
    folder = make_checkpoint()
    first, second = train(folder, tmp_path / "a"), train(folder, tmp_path / "b", init_lora_weights="olora")
    ours, theirs = (
        reference_logits(open_checkpoint(folder, lora=[first, second]), IDS),
        peft_logits(folder, first, second),
    )
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max())


def change(adapter: Path, config: dict[str, Any], drop: str = "", **extra: np.ndarray) -> None:
    path, file = adapter / "adapter_config.json", adapter / "adapter_model.safetensors"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    kept = {name: values for name, values in load_file(file).items() if not (drop and drop in name)}
    save_file(kept | extra, file)


ONE = np.ones(64, np.float32)
Q = "base_model.model.model.layers.0.self_attn.q_proj."


@pytest.mark.parametrize(
    ("config", "extra", "message"),
    [
        ({}, {Q + "lora_C.weight": ONE}, "lora_C.weight' is not known"),
        ({}, {"base_model.model.prompt_embeddings": ONE}, "prompt_embeddings' is not known"),
        ({}, {Q + "lora_magnitude_vector": ONE}, "use_dora is False, and a lora_magnitude_vector is there"),
        ({}, {Q + "lora_B.bias": ONE}, "a bias of lora_B is for lora_bias"),
        ({}, {Q + "bias": ONE}, "bias is 'none'"),
        ({"use_dora": True}, {}, "lora_magnitude_vector is missing"),
        ({"lora_bias": True}, {Q + "lora_B.bias": ONE}, "q_proj, which has none"),
        ({"r": 8}, {}, "factors of rank 4, adapter_config.json says 8"),
        ({"modules_to_save": ["lm_head"]}, {}, "names 'lm_head', but the file has no such tensor"),
        ({"trainable_token_indices": [1]}, {}, "names embed_tokens, and the file has trained tokens of 0 modules"),
        ({"alpha_pattern": {"(": 1}}, {}, "no regular expression"),
        ({"init_lora_weights": "loftq"}, {}, "belong to a base whose weights were changed"),
        ({"init_lora_weights": "corda"}, {}, "belong to a base whose weights were changed"),
        ({"init_lora_weights": "lora_ga"}, {}, "belong to a base whose weights were changed"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "belong to a base whose weights were changed"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, {}, "target_parameters = .* is not supported"),
        ({"use_qalora": True}, {}, "use_qalora = True is not supported"),
        ({"setting_of_tomorrow": 3}, {}, "setting_of_tomorrow = 3 is not supported"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(tiny_checkpoint, tmp_path, config, extra, message):
    adapter = train(tiny_checkpoint, tmp_path)
    change(adapter, config, **extra)
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        open_checkpoint(tiny_checkpoint, lora=adapter)


def test_a_factor_alone_is_refused(tiny_checkpoint, tmp_path):
    change(train(tiny_checkpoint, tmp_path), {}, drop="layers.0.self_attn.q_proj.lora_B")
    with pytest.raises(CheckpointError, match="lora_A without lora_B"):
        open_checkpoint(tiny_checkpoint, lora=tmp_path)


def test_a_pickled_adapter(tiny_checkpoint, tmp_path):
    adapter = train(tiny_checkpoint, tmp_path)
    expected = reference_logits(open_checkpoint(tiny_checkpoint, lora=adapter), IDS)
    tensors = load_file(adapter / "adapter_model.safetensors")
    torch.save({name: torch.from_numpy(values) for name, values in tensors.items()}, adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    np.testing.assert_array_equal(reference_logits(open_checkpoint(tiny_checkpoint, lora=adapter), IDS), expected)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"base_model_name_or_path": "Qwen/Qwen2.5-0.5B"}, "was trained on 'Qwen/Qwen2.5-0.5B'"),
        ({"base_model_name_or_path": "meta/tiny-Instruct"}, "was trained on 'meta/tiny-Instruct'"),
        ({"revision": "abc123"}, "revision 'abc123'"),
        ({"task_type": "SEQ_2_SEQ_LM"}, "task_type 'SEQ_2_SEQ_LM'"),
        ({"auto_mapping": {"base_model_class": "MistralForCausalLM"}}, "a MistralForCausalLM"),
        ({"base_model_name_or_path": "meta/Tiny-bnb-4bit"}, ""),
        ({"base_model_name_or_path": "meta/tiny", "revision": "main", "task_type": None}, ""),
    ],
)
def test_another_base_is_told(tiny_checkpoint, tmp_path, settings, words):
    base = shutil.copytree(tiny_checkpoint, tmp_path / "tiny")
    adapter = train(base, tmp_path / "adapter")
    stated = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(stated | settings))
    told = " ".join(open_checkpoint(base, lora=(adapter,)).warnings)
    assert words in told
    assert bool(words) == ("was trained" in told)
