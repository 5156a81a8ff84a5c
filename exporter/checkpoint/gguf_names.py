"""GGUF tensor names to Hugging Face names, one table per family; {} is the layer.

Names are without their ending: `.weight` and `.bias` are carried over.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

Names = Mapping[str, str]

LLAMA: Names = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}


@dataclass(frozen=True)
class GgufFamily:
    """How one `general.architecture` maps to Hugging Face.

    Args:
        model_type: Hugging Face's name of the family.
        names: GGUF name to Hugging Face name.
        permuted: rows of q and k are stored for interleaved rotation and must be put back.
    """

    model_type: str
    names: Names
    permuted: bool = False


FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily("llama", LLAMA, permuted=True),
}

# Read by the configuration, not weights: rotary frequency factors.
NOT_WEIGHTS = re.compile(r"^(rope_freqs|rope_factors_(long|short))\.weight$|\.(attn_rot_embd|rope_freqs)\.weight$")


def hugging_face_name(stored: str, names: Names) -> str | None:
    """`blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`; None for a name that the table lacks."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+)\.(weight|bias)", stored)
    if match is None:
        return None
    layer, stem, ending = match.groups()
    target = names.get(stem if layer is None else f"blk.{{}}.{stem}")
    return None if target is None else f"{target.format(layer)}.{ending}"
