"""Rows of a checkpoint by transformers: `python -m exporter.sequence.reference REQUEST OUT`.

Nothing here is shared with the export, but that GGUF files are read as there: their config and their tensors. Where
sentence-transformers is installed and the folder has its files, it reads them itself; else transformers computes the
hidden states, and pooling is written down once more.
"""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer a request, JSON of source, kind, pooling, normalized, answer_tokens and texts; rows go to OUT (.npy)."""
    import numpy as np
    import torch

    request = json.loads(sys.argv[1])
    folder = Path(request["source"])
    with torch.inference_mode():
        row = _row_by(folder, request)
        rows = [row(torch.tensor([ids])).float().numpy() for ids in request["texts"]]
    np.save(Path(sys.argv[2]), np.concatenate(rows))
    Path(sys.argv[2]).with_suffix(".json").write_text(json.dumps(_samples(folder)), encoding="utf-8")


def _samples(folder: Path) -> list[tuple[str, list[int]]]:
    """Texts and their ids by the folder's AutoTokenizer, special tokens included; none where it has no tokenizer."""
    from transformers import AutoTokenizer

    if folder.is_file():  # what transformers makes of a GGUF file's tokenizer is not what llama.cpp does
        return []
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:  # noqa: BLE001  # whatever transformers raises of a folder that it does not know
        return []
    return [(text, tokenizer(text)["input_ids"]) for text in ("Hello world", "Ünïcödé 你好 🙂", "a\n\tb")]


def _row_by(folder: Path, request: dict[str, Any]) -> Callable[[Any], Any]:
    if (folder / "modules.json").is_file() and importlib.util.find_spec("sentence_transformers"):
        return _by_sentence_transformers(folder, request["kind"])
    if request["kind"] == "embed":
        return _embedding(folder, request["pooling"], request["normalized"])
    if request["answer_tokens"]:
        return _answer(folder, *request["answer_tokens"])
    return _classifier(folder)


def _by_sentence_transformers(folder: Path, kind: str) -> Callable[[Any], Any]:
    import sentence_transformers
    import torch

    cls = sentence_transformers.SentenceTransformer if kind == "embed" else sentence_transformers.CrossEncoder
    kwargs = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = cls(str(folder), device="cpu", local_files_only=True, model_kwargs=kwargs).eval()
    key = "sentence_embedding" if kind == "embed" else "scores"

    def row(ids: Any) -> Any:
        # What sentence-transformers would find out about a text it has tokenized itself.
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "modality": "text"}
        return model(features)[key].reshape(1, -1)

    return row


def _open(folder: Path, auto: Any) -> Any:
    import torch

    if folder.is_file():
        return _of_gguf(folder, auto)
    model, report = auto.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, local_files_only=True,
        trust_remote_code=False,
    )  # fmt: skip
    if report["missing_keys"] or report["mismatched_keys"]:
        raise ValueError(f"weights are missing: {sorted(report['missing_keys'])[:3]}")
    return model.eval()


def _of_gguf(file: Path, auto: Any) -> Any:
    from transformers import AutoModel

    from ..checkpoint import open_checkpoint
    from ..verify.reference import reference_model

    model = reference_model(open_checkpoint(file))
    return model.base_model if auto is AutoModel else model


def _classifier(folder: Path) -> Callable[[Any], Any]:
    from transformers import AutoModelForSequenceClassification

    model = _open(folder, AutoModelForSequenceClassification)
    model.config.pad_token_id = -1  # no id is padding: the last one counts
    return lambda ids: model(input_ids=ids, use_cache=False).logits


def _answer(folder: Path, yes: int, no: int | None) -> Callable[[Any], Any]:
    from transformers import AutoModelForCausalLM

    model = _open(folder, AutoModelForCausalLM)

    def row(ids: Any) -> Any:
        logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        return logits[:, [yes]] if no is None else logits[:, [yes]] - logits[:, [no]]

    return row


def _embedding(folder: Path, pooling: list[str], normalized: bool) -> Callable[[Any], Any]:
    import torch
    from transformers import AutoModel

    model, dense = _open(folder, AutoModel), _dense(folder)

    def row(ids: Any) -> Any:
        hidden = model(input_ids=ids, use_cache=False).last_hidden_state
        pooled = torch.cat([_pooled(kind, hidden[0]) for kind in pooling])[None]
        for layer in dense:
            pooled = layer(pooled)
        return torch.nn.functional.normalize(pooled) if normalized else pooled

    return row


def _dense(folder: Path) -> list[Callable[[Any], Any]]:
    import torch
    from safetensors.torch import load_file

    def layer(path: Path) -> Callable[[Any], Any]:
        weights = load_file(path / "model.safetensors")
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        activation = getattr(torch.nn, config["activation_function"].rpartition(".")[2])()
        return lambda x: activation(
            torch.nn.functional.linear(x, weights["linear.weight"].float(), weights.get("linear.bias"))
        )

    if not (folder / "modules.json").is_file():
        return []
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    return [layer(folder / one["path"]) for one in modules if one["type"].endswith(".Dense")]


def _pooled(kind: str, hidden: Any) -> Any:
    """`[sequence, H]` of one text without padding → `[H]`, as sentence-transformers' Pooling defines it."""
    import torch

    count = hidden.shape[0]
    weights = torch.arange(1, count + 1)[:, None].float()
    table: dict[str, Callable[[], Any]] = {
        "lasttoken": lambda: hidden[-1],
        "cls": lambda: hidden[0],
        "max": lambda: hidden.max(0).values,
        "mean": lambda: hidden.mean(0),
        "mean_sqrt_len_tokens": lambda: hidden.sum(0) / count**0.5,
        "weightedmean": lambda: (hidden * weights).sum(0) / weights.sum(),
    }
    return table[kind]()


if __name__ == "__main__":
    main()
