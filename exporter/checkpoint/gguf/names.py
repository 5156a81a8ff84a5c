"""GGUF tensor names to Hugging Face names, one table per family; {} is the layer.

Names are without their ending: `.weight` and `.bias` are carried over. A row with an ending, or with a dot at its end
where the tensor has none, is the whole name. Several names: the rows are q, k and v of attention. {e} in a name: one
tensor per entry of the first dimension.
"""

import re
from collections.abc import Mapping

Names = Mapping[str, str | tuple[str, ...]]

LAYER = "model.layers.{}."


def in_layers(prefix: str, rows: Mapping[str, str] | None = None, **names: str) -> dict[str, str]:
    """Rows `blk.{}.<key>` → `<prefix><value>`."""
    return {f"blk.{{}}.{key}": prefix + name for key, name in {**(rows or {}), **names}.items()}


LLAMA: Names = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    **in_layers(
        LAYER,
        attn_norm="input_layernorm",
        attn_q="self_attn.q_proj",
        attn_k="self_attn.k_proj",
        attn_v="self_attn.v_proj",
        attn_output="self_attn.o_proj",
        ffn_norm="post_attention_layernorm",
        ffn_gate="mlp.gate_proj",
        ffn_up="mlp.up_proj",
        ffn_down="mlp.down_proj",
    ),
}
SPLIT_QKV: Names = {"blk.{}.attn_qkv": tuple(f"{LAYER}self_attn.{part}_proj" for part in "qkv")}
QK_NORM: Names = in_layers(LAYER, attn_q_norm="self_attn.q_norm", attn_k_norm="self_attn.k_norm")
# Norms on the outputs of attention and MLP, as OLMo 2 names them.
OUTPUT_NORMS: Names = in_layers(
    LAYER, post_attention_norm="post_attention_layernorm", post_ffw_norm="post_feedforward_layernorm"
)

QWEN3: Names = {**LLAMA, **QK_NORM}
GEMMA2: Names = {**LLAMA, **QK_NORM, **OUTPUT_NORMS, **in_layers(LAYER, ffn_norm="pre_feedforward_layernorm")}
OLMO2: Names = {**LLAMA, **QK_NORM, **OUTPUT_NORMS}
PHI3: Names = {**LLAMA, **in_layers(LAYER, attn_qkv="self_attn.qkv_proj", ffn_up="mlp.gate_up_proj")}
PHI: Names = {
    **LLAMA,
    **SPLIT_QKV,
    "output_norm": "model.final_layernorm",
    **in_layers(LAYER, attn_output="self_attn.dense", ffn_up="mlp.fc1", ffn_down="mlp.fc2"),
}
STARCODER2: Names = {**LLAMA, **in_layers(LAYER, ffn_up="mlp.c_fc", ffn_down="mlp.c_proj")}
STABLELM: Names = {
    **LLAMA,
    **in_layers(LAYER, attn_q_norm="self_attn.q_layernorm.norms.{e}", attn_k_norm="self_attn.k_layernorm.norms.{e}"),
}
# The norm before the MLP has the name of one after attention.
SEED_OSS: Names = {**LLAMA, **in_layers(LAYER, post_attention_norm="post_attention_layernorm")}
HUNYUAN: Names = {
    **LLAMA,
    **in_layers(LAYER, attn_q_norm="self_attn.query_layernorm", attn_k_norm="self_attn.key_layernorm"),
}
GLM: Names = {
    **LLAMA,
    **SPLIT_QKV,
    **in_layers(
        LAYER,
        ffn_up="mlp.gate_up_proj",
        post_attention_norm="post_self_attn_layernorm",
        post_ffw_norm="post_mlp_layernorm",
    ),
}
GPT2: Names = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    **in_layers(
        "transformer.h.{}.",
        attn_norm="ln_1",
        attn_qkv="attn.c_attn",
        attn_output="attn.c_proj",
        ffn_norm="ln_2",
        ffn_up="mlp.c_fc",
        ffn_down="mlp.c_proj",
    ),
}
_DENSE = {"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
GPT_NEOX: Names = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    **in_layers(
        "gpt_neox.layers.{}.",
        _DENSE,
        attn_norm="input_layernorm",
        attn_qkv="attention.query_key_value",
        attn_output="attention.dense",
        ffn_norm="post_attention_layernorm",
    ),
}
BLOOM: Names = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    **in_layers(
        "transformer.h.{}.",
        _DENSE,
        attn_norm="input_layernorm",
        attn_qkv="self_attention.query_key_value",
        attn_output="self_attention.dense",
        ffn_norm="post_attention_layernorm",
    ),
}
FALCON: Names = BLOOM
# Falcon 40B has two norms before its branches; GGUF calls that of attention the second.
FALCON_40B: Names = {**BLOOM, **in_layers("transformer.h.{}.", attn_norm="ln_mlp", attn_norm_2="ln_attn")}
MPT: Names = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
    **in_layers(
        "transformer.blocks.{}.",
        attn_norm="norm_1",
        attn_qkv="attn.Wqkv",
        attn_output="attn.out_proj",
        ffn_norm="norm_2",
        ffn_up="ffn.up_proj",
        ffn_down="ffn.down_proj",
    ),
}

# Read by the configuration, not weights: rotary frequency factors.
NOT_WEIGHTS = re.compile(r"^(rope_freqs|rope_factors_(long|short))\.weight$|\.(attn_rot_embd|rope_freqs)\.weight$")


def hugging_face_names(stored: str, names: Names) -> tuple[str, ...]:
    """`blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`; empty for a name that the table lacks."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+?)(?:\.(weight|bias))?", stored)
    if match is None:
        return ()
    layer, stem, ending = match.groups()
    key = stem if layer is None else f"blk.{{}}.{stem}"
    whole, found = names.get(f"{key}.{ending or ''}"), names.get(key, ())
    if isinstance(whole, str):
        return (whole.replace("{}", layer or ""),)
    targets = (found,) if isinstance(found, str) else found
    return tuple(f"{target.replace('{}', layer or '')}.{ending}" for target in targets)
