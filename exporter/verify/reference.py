"""Logits of a checkpoint by transformers in eager mode: `python -m exporter.verify.reference REQUEST OUT`.

The only module that loads torch and transformers. They get the checkpoint's config and its tensors as we read them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint, open_checkpoint


def reference_model(checkpoint: Checkpoint) -> Any:
    """transformers' own float32 model in eager mode, holding the checkpoint's weights."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = AutoConfig.for_model(**_transformers_config(checkpoint.config))
    weights = {name: torch.from_numpy(source.read()) for name, source in checkpoint.tensors.items()}
    if "lm_head.weight" not in weights:
        config.tie_word_embeddings = True
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    # It converts names and layouts as for a checkpoint of its own: experts are one tensor in its models.
    model = family.from_pretrained(
        None, config=config, state_dict=weights, dtype=torch.float32, attn_implementation=_implementation(config)
    )
    return model.eval()


def reference_logits(checkpoint: Checkpoint, ids: list[int]) -> Any:
    """Logits `[len(ids), V]` of one sequence, as a numpy array."""
    import torch

    with torch.inference_mode():
        return reference_model(checkpoint)(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def _implementation(config: Any) -> str:
    """transformers 5.24's eager attention adds Falcon's linear biases twice: in the scores and in the mask."""
    return "sdpa" if getattr(config, "alibi", False) else "eager"


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
    """Write the logits of a request's ids to OUT (.npy); it is JSON: source, lora, revision and ids."""
    import numpy as np

    request = json.loads(sys.argv[1])
    checkpoint = open_checkpoint(request["source"], lora=request["lora"], revision=request["revision"])
    np.save(Path(sys.argv[2]), reference_logits(checkpoint, request["ids"]))


if __name__ == "__main__":
    main()
