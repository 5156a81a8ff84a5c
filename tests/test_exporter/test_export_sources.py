"""Sources beside a folder: hub ids, adapters, live models; each verified against what it is."""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import exporter
from exporter import ExportOptions
from runtime.bundle.bundle import open_bundle
from runtime.errors import CheckpointError, OptionError, VerificationError

Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def adapter(tmp_path):
    """A LoRA of the first q_proj."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    rng = np.random.default_rng(1)
    tensors = {
        f"base_model.model.{Q_PROJ}.lora_A.weight": rng.standard_normal((4, 64)).astype(np.float32),
        f"base_model.model.{Q_PROJ}.lora_B.weight": rng.standard_normal((64, 4)).astype(np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 2, "bias": "none", "use_dora": False}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def model(tiny_checkpoint):
    """A live model of this test's own."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float32)


def weights(bundle):
    return (bundle / "weights.bin").read_bytes()


def test_adapters_are_merged_and_verified_by_transformers(tiny_checkpoint, adapter, tmp_path, tiny_bundle):
    options = ExportOptions(verify="transformers", lora=(adapter, adapter))
    report = exporter.export(tiny_checkpoint, tmp_path / "bundle", options)
    assert report.manifest.verification.max_difference < 1e-4
    assert report.manifest.source.name.endswith("+ adapter + adapter")
    assert weights(tmp_path / "bundle") != weights(tiny_bundle)


def test_a_hub_id_is_pinned_to_its_commit(monkeypatch, make_checkpoint, tmp_path):
    commit, repository = "0123456789abcdef0123456789abcdef01234567", tmp_path / "hub" / "models--some--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    make_checkpoint().rename(repository / "snapshots" / commit)
    code = "import exporter; print(exporter.export('some/model', 'out').manifest.source.revision)"
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == commit, done.stderr
    assert open_bundle(tmp_path / "out").manifest.verification.method == "transformers"


def test_a_live_model_is_verified_against_itself(model, tiny_checkpoint, tmp_path, tiny_bundle):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    report = exporter.export(model.train(), tmp_path / "bundle", tokenizer=tokenizer)
    assert (report.manifest.verification.method, report.manifest.source.format) == ("module", "module")
    assert weights(tmp_path / "bundle") == weights(tiny_bundle)
    assert "tokenizer.json" in report.manifest.files
    assert model.training


def test_a_live_model_that_is_more_than_its_weights_is_found_out(model, tmp_path):
    model.model.norm.register_forward_hook(lambda _module, _inputs, output: output * 2)
    with pytest.raises(VerificationError, match="differ from module"):
        exporter.export(model, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_a_live_model_in_half_precision_is_compared_in_full(model, tmp_path):
    report = exporter.export(model.bfloat16(), tmp_path / "bundle")
    assert report.manifest.verification.method == "transformers"
    assert report.manifest.verification.max_difference < 1e-4


def test_options_that_mean_nothing_are_refused(model, tmp_path):
    with pytest.raises(OptionError, match="target: 'tpu' is not supported; choose one of cpu, cuda"):
        ExportOptions(target="tpu")
    with pytest.raises(OptionError, match="give a tuple of folders"):
        ExportOptions(lora="adapter")
    with pytest.raises(CheckpointError, match="this is a live model"):
        exporter.export(model, tmp_path / "bundle", ExportOptions(revision="main"))


def test_the_source_is_hashed_beside_the_work(tiny_checkpoint, tmp_path, monkeypatch):
    from exporter.checkpoint import checkpoint

    threads = []
    digest = checkpoint.file_sha256
    record = lambda path: [threads.append(threading.current_thread()), digest(path)][1]  # noqa: E731
    monkeypatch.setattr(checkpoint, "file_sha256", record)
    report = exporter.export(tiny_checkpoint, tmp_path / "bundle", ExportOptions(verify="none"))
    assert threading.main_thread() not in threads
    assert report.manifest.source.sha256 == digest(tiny_checkpoint / "model.safetensors")


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, exporter; print([m for m in ('torch', 'transformers', 'onnx', 'onnxscript') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
