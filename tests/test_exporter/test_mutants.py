"""Verification shares no code with the export: it sees a wrong merge, a wrong rope, a dropped head, a wrong token."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from exporter.export import ExportOptions, export
from runtime.errors import VerificationError

pytestmark = pytest.mark.filterwarnings("ignore")


def verified(folder: Path, output: Path, **options: Any) -> None:
    export(folder, output, ExportOptions(verify="transformers", **options))


@pytest.fixture
def adapter(tiny_checkpoint, tmp_path) -> Path:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"]))
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_wrong_merge(tiny_checkpoint, adapter, tmp_path, monkeypatch):
    verified(tiny_checkpoint, tmp_path / "right", lora=(adapter,))
    monkeypatch.setattr("exporter.checkpoint.lora.settings.AdapterSettings.scale", lambda *_: 1.5)
    with pytest.raises(VerificationError, match="differ from transformers"):
        verified(tiny_checkpoint, tmp_path / "wrong", lora=(adapter,))


def test_a_wrong_rope(tiny_checkpoint, tmp_path, monkeypatch):
    from models.decoder import rope

    base = rope.inverse_frequencies
    monkeypatch.setattr(rope, "inverse_frequencies", lambda theta, width: base(theta * 1.3, width))
    with pytest.raises(VerificationError, match="differ from transformers"):
        verified(tiny_checkpoint, tmp_path / "wrong")


def test_a_dropped_head(make_checkpoint, tmp_path, monkeypatch):
    folder = make_checkpoint(tie_word_embeddings=False)

    def drop(decoder: Any, _sources: Any, tensors: Any) -> Any:
        return replace(decoder, tied_head=True), {n: t for n, t in tensors.items() if n != "lm_head.weight"}

    monkeypatch.setattr(import_module("exporter.export"), "tie_head", drop)
    with pytest.raises(VerificationError, match="differ from transformers"):
        verified(folder, tmp_path / "wrong")


def test_a_wrong_token(tiny_checkpoint, tmp_path, monkeypatch):
    def forget(content: bytes, *_: Any) -> Any:
        return content.replace(b"<|im_end|>", b"<|im_fin|>"), []

    monkeypatch.setattr("exporter.tokenizer.folder.with_declared_tokens", forget)
    with pytest.raises(VerificationError, match=r"by the bundle's tokenizer\.json, and"):
        verified(tiny_checkpoint, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("method", ["auto", "transformers"])
def test_memory_is_asked_for_first(tiny_checkpoint, tmp_path, monkeypatch, method):
    monkeypatch.setattr("exporter.verify.choice.available_memory", lambda: 100 << 20)
    run = lambda: export(tiny_checkpoint, tmp_path / "out", ExportOptions(verify=method))  # noqa: E731
    if method == "transformers":
        with pytest.raises(VerificationError, match=r"needs about \d+\.\d+ GB of memory, and 0\.10 GB are free"):
            run()
    else:
        report = run()
        assert report.manifest.verification.method == "self-consistency"
        assert "Prefill is compared with decode instead" in report.warnings[0]
