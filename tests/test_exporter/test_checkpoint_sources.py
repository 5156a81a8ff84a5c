"""Sources beside plain safetensors: pickles, LoRA adapters, hub ids, live models."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from exporter.checkpoint import Checkpoint, open_checkpoint, open_module
from runtime.errors import CheckpointError, UnsupportedError

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def same_values(ours: Checkpoint, theirs: dict[str, np.ndarray]) -> bool:
    assert ours.tensors.keys() == theirs.keys()
    return all(np.array_equal(ours.tensors[name].read(), values) for name, values in theirs.items())


# pytorch_model.bin


def pickle_weights(folder: Path, shards: int = 1) -> dict[str, np.ndarray]:
    """Replace model.safetensors by pytorch_model.bin, or by shards with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = [f"pytorch_model-{i}.bin" for i in range(shards)] if shards > 1 else ["pytorch_model.bin"]
    places = {name: files[i % shards] for i, name in enumerate(tensors)}
    for file in files:
        torch.save({n: torch.from_numpy(v) for n, v in tensors.items() if places[n] == file}, folder / file)
    if shards > 1:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    return tensors


@pytest.mark.parametrize("shards", [1, 3])
def test_pickled_weights_are_read_by_a_child(make_checkpoint, shards):
    folder = make_checkpoint(seed=1)
    tensors = pickle_weights(folder, shards)
    checkpoint = open_checkpoint(folder)
    scratch = next(iter(checkpoint.tensors.values())).range.path.parent
    assert same_values(checkpoint, tensors)
    assert [path.suffix for path in checkpoint.files] == [".bin"] * shards
    del checkpoint
    assert not scratch.exists()


def test_a_pickle_that_would_run_code_runs_none(make_checkpoint, tmp_path):
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    folder = make_checkpoint(seed=1)
    (folder / "model.safetensors").unlink()
    torch.save({"w": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin: UnpicklingError: .* Only files of plain tensors"):
        open_checkpoint(folder)
    assert not (tmp_path / "exploded").exists()


def test_a_single_pickle_wins_over_an_index(make_checkpoint):
    folder = make_checkpoint(seed=3)
    old = pickle_weights(folder, 2)
    torch.save({name: torch.from_numpy(value) + 1 for name, value in old.items()}, folder / "pytorch_model.bin")
    name = "model.norm.weight"
    checkpoint = open_checkpoint(folder)
    ours = np.asarray(checkpoint.tensors[name].read())
    np.testing.assert_array_equal(ours, AutoModelForCausalLM.from_pretrained(folder).state_dict()[name].numpy())
    np.testing.assert_array_equal(ours, old[name] + 1)


@pytest.mark.parametrize("change", [{"model.extra.weight": "pytorch_model-0.bin"}, {"model.norm.weight": "swapped"}])
def test_an_index_of_other_shards_is_refused(make_checkpoint, change):
    folder = make_checkpoint(seed=3)
    pickle_weights(folder, 2)
    path = folder / "pytorch_model.bin.index.json"
    places = json.loads(path.read_text())["weight_map"]
    other = {"pytorch_model-0.bin", "pytorch_model-1.bin"} - {places["model.norm.weight"]}
    changed = {name: other.copy().pop() if file == "swapped" else file for name, file in change.items()}
    path.write_text(json.dumps({"weight_map": places | changed}))
    with pytest.raises(CheckpointError, match=rf"tensor '{next(iter(change))}' should be in"):
        open_checkpoint(folder)


def test_a_missing_pickle_shard_is_named(make_checkpoint):
    folder = make_checkpoint(seed=1)
    pickle_weights(folder, 2)
    (folder / "pytorch_model-1.bin").unlink()
    with pytest.raises(CheckpointError, match=r"pytorch_model-1.bin: this shard is named by .* and missing"):
        open_checkpoint(folder)


# LoRA


def write_adapter(folder: Path, tensors: dict[str, np.ndarray], **changes: Any) -> Path:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "use_dora": False} | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(
        {f"base_model.model.{name}": values for name, values in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return folder


def low_rank(rows: int, columns: int, rank: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    return rng.standard_normal((rank, columns)).astype(np.float32), rng.standard_normal((rows, rank)).astype(np.float32)


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 2),
        ({"use_rslora": True}, 4),
        ({"alpha_pattern": {"q_proj": 4}, "lora_dropout": 0.1}, 1),
        ({"alpha_pattern": {"k_proj": 4}}, 2),
    ],
)
def test_lora_is_added(tiny_checkpoint, tmp_path, changes, scale):
    down, up = low_rank(64, 64)
    stem = Q_PROJ.removesuffix(".weight")
    adapter = write_adapter(tmp_path, {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}, **changes)
    base, merged = open_checkpoint(tiny_checkpoint), open_checkpoint(tiny_checkpoint, lora=adapter)
    np.testing.assert_allclose(
        merged.tensors[Q_PROJ].read(), base.tensors[Q_PROJ].read() + scale * up @ down, atol=1e-5
    )
    assert merged.tensors[Q_PROJ].packed() is None
    assert merged.tensors.keys() == base.tensors.keys()


def test_lora_of_an_embedding_and_whole_modules(tiny_checkpoint, tmp_path):
    down, up = low_rank(64, 320)
    norm = np.full(64, 3, np.float32)
    names = {"model.embed_tokens.lora_embedding_A": down, "model.embed_tokens.lora_embedding_B": up}
    adapter = write_adapter(tmp_path, names | {"model.norm.modules_to_save.default.weight": norm})
    base, merged = (open_checkpoint(tiny_checkpoint, lora=lora).tensors for lora in (None, adapter))
    table = "model.embed_tokens.weight"
    np.testing.assert_allclose(merged[table].read(), base[table].read() + 2 * (up @ down).T, atol=1e-5)
    np.testing.assert_array_equal(merged["model.norm.weight"].read(), norm)


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        ({}, {"peft_type": "IA3"}, "peft_type 'IA3'; supported is LORA"),
        ({"x.lora_C.weight": low_rank(4, 4)[0]}, {}, "lora_C.weight' is not known"),
        ({}, {}, "holds no lora_A tensors"),
        ({"x.lora_A.weight": low_rank(4, 4)[0]}, {}, "changes 'x', which"),
        (dict(zip(("x.lora_A.weight", "x.lora_B.weight"), low_rank(4, 4), strict=True)), {}, "changes 'x', which"),
        (
            dict(zip((Q_PROJ.replace("weight", f"lora_{x}.weight") for x in "AB"), low_rank(4, 4), strict=True)),
            {},
            r"\[4, 4\] @ \[4, 4\] does not fit \[64, 64\]",
        ),
    ],
)
def test_adapters_that_do_not_fit_are_refused(tiny_checkpoint, tmp_path, tensors, changes, message):
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        open_checkpoint(tiny_checkpoint, lora=write_adapter(tmp_path, tensors, **changes))


# Hub ids


@pytest.mark.parametrize("source", ["nobody/nothing", "nobody/nothing/x.gguf"])
def test_offline_errors_say_what_to_do(monkeypatch, source):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        CheckpointError, match=r"nobody/nothing: no such path here, and it cannot be fetched from the hub"
    ):
        open_checkpoint(source)


def test_a_cached_snapshot_is_opened_at_its_commit(monkeypatch, make_checkpoint, tmp_path):
    snapshot = tmp_path / ("ab" * 20)
    make_checkpoint(seed=1).rename(snapshot)
    asked = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **kw: asked.update(kw, name=name) or snapshot)
    checkpoint = open_checkpoint("some/model", revision="v1")
    assert (checkpoint.name, checkpoint.revision) == ("some/model", "ab" * 20)
    assert (asked["name"], asked["revision"]) == ("some/model", "v1")
    assert "*.safetensors" in asked["allow_patterns"]


def test_a_revision_of_a_path_is_refused(tiny_checkpoint):
    with pytest.raises(CheckpointError, match="a revision is for hub ids; this is a path"):
        open_checkpoint(tiny_checkpoint, revision="main")


# Live models


def test_a_live_model_is_its_saved_folder(tiny_checkpoint):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.bfloat16)
    live = open_module(model, AutoTokenizer.from_pretrained(tiny_checkpoint))
    stored = open_checkpoint(tiny_checkpoint)
    assert live.tensors.keys() == stored.tensors.keys()
    np.testing.assert_allclose(live.tensors[Q_PROJ].read(), stored.tensors[Q_PROJ].read(), rtol=2**-8)
    assert (live.config["hidden_size"], live.config["model_type"]) == (64, "llama")
    assert {"tokenizer.json", "chat_template.jinja"} <= live.tokenizer_files.keys()


def test_modules_need_a_config():
    with pytest.raises(CheckpointError, match=r"Linear has no config; give the keys of config.json"):
        open_checkpoint(torch.nn.Linear(2, 2))
    checkpoint = open_module(torch.nn.Linear(2, 2), config={"model_type": "x"})
    assert checkpoint.tensors["weight"].shape == (2, 2)


def test_anything_else_is_no_source():
    with pytest.raises(CheckpointError, match="int: not a path, a hub id or a torch module"):
        open_checkpoint(3)
