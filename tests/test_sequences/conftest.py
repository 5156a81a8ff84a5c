"""Tiny embedding models and rerankers, with the files by which sentence-transformers describes them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY_CONFIG, llama_tensors, write_checkpoint

from exporter.export import ExportOptions, export

_TYPES = {"LogitScore": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}
PROMPTS = {"query": "Instruct: find\nQuery:", "document": ""}


def add_modules(folder: Path, *kinds: str, prompts: dict[str, str] = PROMPTS, **settings: Any) -> Path:
    """modules.json and what it names; `settings` replace the content of a module's config.json."""
    paths = ["", *(f"{place}_{kind}" for place, kind in enumerate(kinds, 1))]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": _TYPES.get(kind, f"sentence_transformers.models.{kind}")}
        for i, (path, kind) in enumerate(zip(paths, ("Transformer", *kinds), strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    usual = {"Pooling": {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True, "include_prompt": True}}
    for path, kind in zip(paths[1:], kinds, strict=True):
        (folder / path).mkdir()
        config = settings.get(kind, usual.get(kind))
        if config is not None:
            (folder / path / "config.json").write_text(json.dumps(config))
    model = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(model | settings.get("model", {})))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128, "do_lower_case": False}))
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """A tiny model's folder; a classifier with a head for `labels`."""

    def make(labels: int = 0, **changes: Any) -> Path:
        config = TINY_CONFIG | changes
        tensors = llama_tensors(config)
        if labels:
            config |= {"architectures": ["LlamaForSequenceClassification"], "num_labels": labels, "pad_token_id": 3}
            config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)} | changes.get("id2label", {})
            tensors["score.weight"] = np.random.default_rng(1).standard_normal((labels, 64)).astype(np.float32)
        return write_checkpoint(tmp_path / "checkpoint", config, tensors)

    return make


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., Any]:
    """The report of an export, verified by transformers unless something else is said."""

    def make(folder: Path, task: str = "embed", **options: Any) -> Any:
        return export(folder, tmp_path / "bundle", ExportOptions(**({"task": task} | options)))

    return make


@pytest.fixture(scope="module")
def embedder_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny embedding model: last token, normalized."""
    folder = tmp_path_factory.mktemp("embedder")
    checkpoint = write_checkpoint(folder / "checkpoint", TINY_CONFIG, llama_tensors(TINY_CONFIG))
    add_modules(checkpoint, "Pooling", "Normalize")
    export(checkpoint, folder / "bundle", ExportOptions(task="embed", verify="none"))
    return folder / "bundle"


@pytest.fixture(scope="module")
def reranker_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny reranker that is asked for one token."""
    folder = tmp_path_factory.mktemp("reranker")
    checkpoint = write_checkpoint(folder / "checkpoint", TINY_CONFIG, llama_tensors(TINY_CONFIG))
    template = "{instruction} | {query} | {document} ?"
    options = ExportOptions(task="score", score_tokens=("y", "n"), pair_template=template, verify="none")
    export(checkpoint, folder / "bundle", options)
    return folder / "bundle"
