"""A checkpoint as transformers, and its adapters as PEFT, open them: nothing here is shared with the export."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TEXTS = (
    "Hello world",
    " Hello  world",
    "It's 1234 o'clock,\n\n\tisn't it?",
    "Ünïcödé 你好 مرحبا 🙂",
    "def f(x):\n    return x",
)
_MARKS = 400  # of the tokens declared beside the vocabulary, at most


def open_model(folder: Path) -> Any:
    """transformers' own float32 model of a folder, or None where it has none or would leave weights at random."""
    import torch
    from transformers import AutoModelForCausalLM

    if not folder.is_dir() or _is_quantized(folder):
        return None
    try:
        opened: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=_attention(folder), output_loading_info=True,
            local_files_only=True, trust_remote_code=False,
        )  # fmt: skip
    except Exception:  # noqa: BLE001  # whatever transformers raises of a folder that it does not know
        return None
    model, report = opened
    return None if report["missing_keys"] or report["mismatched_keys"] else model.eval()


def adapted_model(model: Any, adapters: Sequence[str]) -> Any:
    """The model with PEFT's adapters. The last one is not merged: merging changes both sides of a tied head."""
    for number, adapter in enumerate(adapters):
        from peft import PeftModel

        _fit_vocabulary(model, Path(adapter))
        model = PeftModel.from_pretrained(model, adapter)
        if number + 1 < len(adapters):
            model = model.merge_and_unload()
    return model.eval()


def sampled_tokens(folder: Path) -> list[tuple[str, list[int]]]:
    """Texts and their ids by the folder's AutoTokenizer, without begin and end; each added token inside a text."""
    from transformers import AutoTokenizer

    if not folder.is_dir():
        return []
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:  # noqa: BLE001  # whatever transformers raises of a folder that it does not know
        return []
    marks = [token.content for token in tokenizer.added_tokens_decoder.values()][:_MARKS]
    texts = [*_TEXTS, *(f"user{mark}\nHello {mark} world" for mark in marks)]
    return [(text, tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


def _is_quantized(folder: Path) -> bool:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    parts = (config, config.get("text_config") or {})
    return any(part.get("quantization_config") or part.get("compression_config") for part in parts)


def _attention(folder: Path) -> str:
    """transformers 5.24's eager attention adds Falcon's linear biases twice: in the scores and in the mask."""
    return "sdpa" if json.loads((folder / "config.json").read_text(encoding="utf-8")).get("alibi") else "eager"


def _fit_vocabulary(model: Any, adapter: Path) -> None:
    """An adapter whose tokenizer grew brings the grown embedding along, and PEFT wants room for it."""
    from safetensors import safe_open

    embedding = model.get_input_embeddings()
    name = next(name for name, module in model.named_modules() if module is embedding)
    if not (adapter / "adapter_model.safetensors").is_file():
        return
    with safe_open(adapter / "adapter_model.safetensors", "numpy") as file:
        stored = [key for key in file.keys() if key.endswith((f"{name}.weight", f"{name}.base_layer.weight"))]  # noqa: SIM118
        for key in stored:
            rows = file.get_slice(key).get_shape()[0]
            if rows != embedding.num_embeddings:
                model.resize_token_embeddings(rows)
