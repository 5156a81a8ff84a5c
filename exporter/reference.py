"""Logits of a checkpoint by transformers in eager mode: `python -m exporter.reference SOURCE OUT IDS`, a child process.

The only module that loads torch and transformers. They get the checkpoint's config and its tensors as we read them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, open_checkpoint


def reference_model(checkpoint: Checkpoint) -> Any:
    """transformers' own float32 model in eager mode, holding the checkpoint's weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**_transformers_config(checkpoint.config))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=_implementation(config))  # type: ignore[no-untyped-call]
    model = model.to_empty(device="cpu").to(torch.float32)
    weights = {name: torch.from_numpy(source.read()) for name, source in checkpoint.tensors.items()}
    missing = model.load_state_dict(weights, strict=False).missing_keys
    if "lm_head.weight" in missing:
        config.tie_word_embeddings = True
        model.tie_weights()
    _recompute_buffers(model, config)
    return model.eval()


def reference_logits(checkpoint: Checkpoint, ids: list[int]) -> Any:
    """Logits `[len(ids), V]` of one sequence, as a numpy array."""
    import torch

    with torch.inference_mode():
        return reference_model(checkpoint)(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def _implementation(config: Any) -> str:
    """transformers 5.24's eager attention adds Falcon's linear biases twice: in the scores and in the mask."""
    return "sdpa" if getattr(config, "alibi", False) else "eager"


def _recompute_buffers(model: Any, config: Any) -> None:
    """Buffers are computed, not stored, and were lost on the meta device: rebuild the modules that own them."""
    for name, module in list(model.named_modules()):
        if next(module.buffers(recurse=False), None) is not None:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], type(module)(config))


def _transformers_config(config: Any) -> dict[str, Any]:
    """Ours, with explicit rope divisors (as in GGUF files) in the one form that transformers knows: longrope."""
    values = dict(config)
    rope = values.get("rope_parameters") or {}
    if rope.get("rope_type") == "factors":
        longrope = {"rope_type": "longrope", "short_factor": rope["factors"], "long_factor": rope["factors"]}
        values["rope_parameters"] = rope | longrope | {"factor": 1.0, "attention_factor": 1.0}
        values["rope_parameters"].pop("factors")
    return values


def main() -> None:
    """Write the logits of IDS (a JSON list) to OUT (.npy)."""
    import numpy as np

    source, output, ids = sys.argv[1:]
    np.save(Path(output), reference_logits(open_checkpoint(source), json.loads(ids)))


if __name__ == "__main__":
    main()
