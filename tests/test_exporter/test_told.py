"""What a folder or an adapter holds and no run uses: told by name or refused, whatever it is called."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from exporter.checkpoint import open_checkpoint
from exporter.export import ExportOptions, export
from runtime.errors import CheckpointError, UnsupportedError


def update(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))


def told(folder: Path, **options: Any) -> str:
    return " ".join(open_checkpoint(folder, **options).warnings)


# Settings and ids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"top_k": 1e30}', "top_k is 1e"),
        ('{"top_k": ' + "9" * 400 + "}", "top_k is 9"),
        ('{"suppress_tokens": [1, NaN]}', r"suppress_tokens is \[1, nan\]"),
        ('{"made_up": {"a": [Infinity]}}', "which is no number"),
    ],
)
def test_numbers_that_are_none_are_refused_at_any_depth(make_checkpoint, text, message):
    folder = make_checkpoint()
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "pad_token_id"])
def test_ids_beyond_the_vocabulary_are_told(make_checkpoint, tmp_path, file, key):
    folder = make_checkpoint()
    update(folder, file, **{key: 9999})
    report = export(folder, tmp_path / "out", ExportOptions(verify="none"))
    assert f"{key} 9999: not used, as the ids of this model's tokens are 0 to 319" in report.warnings[0]


WORDS = st.text("abcdefgh_", min_size=3, max_size=12).map("zz{}".format)
EACH = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EACH
@given(WORDS, st.sampled_from(["generation_config.json", "tokenizer_config.json"]), st.sampled_from([1, "x", [1], {}]))
def test_any_other_setting_is_told(make_checkpoint, word, file, value):
    folder = make_checkpoint()
    update(folder, file, **{word: value})
    assert f"{file}: {word}: not known" in told(folder)


def test_settings_without_influence_are_not_worth_a_word(make_checkpoint):
    folder = make_checkpoint()
    update(folder, "generation_config.json", transformers_version="5.24", use_cache=True, max_length=20, num_beams=1)
    update(folder, "tokenizer_config.json", model_max_length=8, padding_side="left", clean_up_tokenization_spaces=False)
    assert told(folder) == ""


# Templates


def test_a_template_that_is_there_twice_is_refused(make_checkpoint):
    folder = make_checkpoint()
    update(folder, "tokenizer_config.json", chat_template=[{"name": "default", "template": text} for text in "ab"])
    with pytest.raises(CheckpointError, match="chat_template has 'default' twice"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("chat_template.jinja", "other", "chat_template.jinja counts, and not the other chat template"),
        ("chat_template.jinja", "", "the chat template 'default' is empty"),
        ("chat_template.jinja", "{% if %}", "the chat template 'default' is broken in line 1"),
        ("additional_chat_templates/rag.jinja", "a\n{{", "the chat template 'rag' is broken in line 2"),
        ("additional_chat_templates/rag.jinja", "a", "chat templates rag are kept, and never used by themselves"),
    ],
)
def test_templates_that_lose_or_are_broken_are_told(make_checkpoint, file, text, word):
    folder = make_checkpoint()
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(text)
    assert word in told(folder)


def test_marks_of_the_assistant_are_no_mistake(make_checkpoint):
    folder = make_checkpoint()
    text = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    update(folder, "tokenizer_config.json", chat_template=text)
    assert told(folder) == ""


# Adapters


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    rng, name = np.random.default_rng(0), "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    tensors = {name.format(i, part): rng.standard_normal(shape, np.float32)
               for i in range(2) for part, shape in (("A", (2, 64)), ("B", (64, 2)))}  # fmt: skip
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def copied(adapter: Path, tmp_path: Path, **config: Any) -> Path:
    shutil.copytree(adapter, tmp_path, dirs_exist_ok=True)
    update(tmp_path, "adapter_config.json", **config)
    return tmp_path


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize("value", [["q_proj"], "q_proj", 4])
def test_patterns_that_are_none_are_refused(tiny_checkpoint, adapter, tmp_path, key, value):
    with pytest.raises(CheckpointError, match=f"{key} must map names to numbers"):
        open_checkpoint(tiny_checkpoint, lora=copied(adapter, tmp_path, **{key: value}))


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"target_modules": ["q_proj", "v_proj"]}, "names 2 modules that the file has no factors of, such as .*v_proj"),
        ({"target_modules": r".*\.(q|k)_proj"}, "names 2 modules"),
        ({"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["layers.0.self_attn.v_proj"]}, "names 1 modules"),
        ({"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]}, "names 1 modules"),
        ({"target_modules": ["q_proj", "v_proj"], "exclude_modules": ".*v_proj"}, ""),
        ({"target_modules": "all-linear"}, ""),
    ],
)
def test_modules_without_factors_are_told(tiny_checkpoint, adapter, tmp_path, config, missing):
    warnings = told(tiny_checkpoint, lora=copied(adapter, tmp_path, **config))
    assert bool(warnings) == bool(missing)
    assert re.search(missing, warnings)


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("adapter_model.bin", False), ("value_head.safetensors", False), ("chat_template.jinja", False),
        ("generation_config.json", False), ("added_tokens.json", False), ("README.md", True),
        ("training_args.bin", True), ("optimizer.pt", True),
    ],
)  # fmt: skip
def test_files_beside_an_adapter(tiny_checkpoint, adapter, tmp_path, name, used):
    (copied(adapter, tmp_path) / name).write_text("{}")
    assert (f"{name}: not used" in told(tiny_checkpoint, lora=tmp_path)) is not used


def test_rows_of_new_tokens_in_a_file_of_their_own_are_refused(tiny_checkpoint, adapter, tmp_path):
    (copied(adapter, tmp_path) / "new_embeddings.safetensors").write_text("")
    with pytest.raises(UnsupportedError, match="rows of new tokens beside the adapter"):
        open_checkpoint(tiny_checkpoint, lora=tmp_path)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "nowhere"])
def test_an_adapter_is_a_folder(tiny_checkpoint, adapter, name):
    with pytest.raises(CheckpointError, match=r"no folder\. Give the folder that holds adapter_config\.json"):
        open_checkpoint(tiny_checkpoint, lora=adapter / name)


@EACH
@given(WORDS, st.sampled_from(["base_model.model.{}", "base_model.model.model.layers.0.self_attn.q_proj.{}",
                               "base_model.model.model.layers.0.{}.lora_A.weight", "{}.weight"]))  # fmt: skip
def test_any_other_tensor_of_an_adapter_is_an_error(tiny_checkpoint, adapter, tmp_path_factory, word, place):
    folder = copied(adapter, tmp_path_factory.mktemp("other"))
    name = place.format(word)
    file = folder / "adapter_model.safetensors"
    save_file(load_file(file) | {name: np.ones((2, 64), np.float32)}, file)
    with pytest.raises((CheckpointError, UnsupportedError), match=word):
        open_checkpoint(tiny_checkpoint, lora=folder)


@EACH
@given(WORDS, st.sampled_from([1, "x", [1], True]))
def test_any_other_setting_of_an_adapter_is_an_error(tiny_checkpoint, adapter, tmp_path_factory, word, value):
    folder = copied(adapter, tmp_path_factory.mktemp("other"), **{word: value})
    with pytest.raises(UnsupportedError, match=word):
        open_checkpoint(tiny_checkpoint, lora=folder)


def test_merges_left_out_at_random_are_refused(make_checkpoint):
    folder = make_checkpoint()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for dropout, refused in ((None, False), (0.0, False), (0.1, True)):
        update(folder, "tokenizer.json", model=tokenizer["model"] | {"dropout": dropout})
        with pytest.raises(CheckpointError, match="makes ids random") if refused else nullcontext():
            open_checkpoint(folder)
