"""Logits of a checkpoint by transformers in eager mode: `python -m exporter.verify.reference REQUEST OUT`.

Where transformers can, it opens the folder by itself (`independent`): what is compared shares no code with the export.
GGUF files, quantized checkpoints and live modules it gets as we read them: their config and their tensors.
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
    """Answer a request, JSON of source, lora, revision and ids: logits go to OUT (.npy), the rest to a .json beside."""
    import numpy as np
    import torch

    from .independent import adapted_model, open_model, sampled_tokens

    request = json.loads(sys.argv[1])
    checkpoint = open_checkpoint(request["source"], revision=request["revision"])
    path = checkpoint.path
    model = open_model(path) if path is not None else None
    independent = model is not None
    model = adapted_model(model if model is not None else reference_model(checkpoint), request["lora"])
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([request["ids"]]), use_cache=False).logits[0].numpy()
    np.save(Path(sys.argv[2]), logits)
    samples = sampled_tokens(path) if path is not None and not request["lora"] else []
    Path(sys.argv[2]).with_suffix(".json").write_text(
        json.dumps({"independent": independent, "samples": samples}), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
