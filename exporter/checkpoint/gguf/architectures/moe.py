"""What each GGUF architecture with experts is in Hugging Face's terms."""

from collections.abc import Mapping

from .. import layer_names as names
from ..config import Keys, Settings, present
from ..family import GgufFamily, biased, standard
from ..joined import Joined
from ..orders import HALVES
from .dense import granite, phi3

SIGMOID = 2  # of expert_gating_func


def counts(keys: Keys, experts: str) -> Settings:
    """How many experts there are, under the name `experts`, and how many each token uses."""
    return {experts: keys.integer("expert_count"), "num_experts_per_tok": keys.integer("expert_used_count")}


def _mixtral(keys: Keys) -> Settings:
    return {**standard(keys), **counts(keys, "num_local_experts")}


def _qwen2_moe(keys: Keys) -> Settings:
    shared = keys.file.tensors.get("blk.0.ffn_up_shexp.weight")
    return {
        **keys.standard(),
        **counts(keys, "num_experts"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": 0 if shared is None else shared.shape[0],
        "norm_topk_prob": bool(keys.get("expert_weights_norm", False)),
    }


def _qwen3_moe(keys: Keys) -> Settings:
    return {
        **biased(keys),
        **counts(keys, "num_experts"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,  # all released models; the file does not say
    }


def _olmoe(keys: Keys) -> Settings:
    normed = bool(keys.get("expert_weights_norm", False))
    clip = present(clip_qkv=keys.get("attention.clamp_kqv"))
    return {**keys.standard(), **counts(keys, "num_experts"), "norm_topk_prob": normed, **clip}


def _granite_moe(keys: Keys) -> Settings:
    settings = {**granite(keys), **counts(keys, "num_local_experts")}
    settings.pop("mlp_bias")
    shared = keys.get("expert_shared_feed_forward_length")
    return {**settings, **present(shared_intermediate_size=shared)}


def _phimoe(keys: Keys) -> Settings:
    """The file has one attention factor, where the original config has one for short and one for long texts."""
    settings = {**phi3(keys), **counts(keys, "num_local_experts")}
    rope = dict(settings["rope_parameters"])
    factor = rope.pop("attention_factor", None)
    rope |= present(short_mscale=factor, long_mscale=factor)
    biases = {"attention_bias": keys.has("blk.0.attn_q.bias"), "lm_head_bias": keys.has("output.bias")}
    return {**settings, "rope_parameters": rope, **biases}


def _gpt_oss(keys: Keys) -> Settings:
    settings = {**biased(keys), **counts(keys, "num_local_experts")}
    settings["rope_parameters"] = {**settings["rope_parameters"], "truncate": False}
    window = keys.integer("attention.sliding_window")
    return {**settings, "sliding_window": window, "layer_types": keys.layer_types(2)}


def _routed(keys: Keys) -> Settings:
    """What DeepSeek and its kin call their experts."""
    return {
        **counts(keys, "n_routed_experts"),
        "n_shared_experts": keys.integer("expert_shared_count", 1),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
        "routed_scaling_factor": keys.get("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(keys.get("expert_weights_norm", False)),
        "n_group": keys.get("expert_group_count") or 1,
        "topk_group": keys.get("expert_group_used_count") or 1,
    }


def _deepseek(keys: Keys) -> Settings:
    """Latent attention. `key_length` is that of the latent form where there is a `key_length_mla` for the other."""
    settings = {**keys.standard(), **_routed(keys)}
    rotary = keys.integer("rope.dimension_count")
    size = keys.integer("attention.key_length_mla", keys.integer("attention.key_length"))
    settings.pop("head_dim")
    settings["rope_parameters"].pop("partial_rotary_factor", None)
    settings["num_key_value_heads"] = settings["num_attention_heads"]
    return {
        **settings,
        "kv_lora_rank": keys.integer("attention.kv_lora_rank"),
        "q_lora_rank": keys.get("attention.q_lora_rank") if keys.has("blk.0.attn_q_a.weight") else None,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": size - rotary,
        "v_head_dim": keys.integer("attention.value_length_mla", keys.integer("attention.value_length")),
        **_v2_or_v3(keys, settings),
    }


def _v2_or_v3(keys: Keys, settings: Settings) -> Settings:
    if keys.get("expert_gating_func", 1) == SIGMOID:
        return {"model_type": "deepseek_v3"}
    if settings["n_group"] > 1:
        return {"topk_method": "group_limited_greedy"}
    return {"topk_method": "greedy", "n_group": None, "topk_group": None}


def _glm4_moe(keys: Keys) -> Settings:
    return {**biased(keys), **_routed(keys), "use_qk_norm": keys.has("blk.0.attn_q_norm.weight")}


def _ernie_moe(keys: Keys) -> Settings:
    return {
        **keys.standard(),
        "use_bias": keys.has("blk.0.attn_q.bias"),
        "moe_num_experts": keys.integer("expert_count"),
        "moe_k": keys.integer("expert_used_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "moe_num_shared_experts": keys.integer("expert_shared_count", 1),
        "moe_layer_start_index": keys.get("leading_dense_block_count", 0),
        "moe_layer_end_index": keys.layers - 1,
        "moe_layer_interval": keys.get("interleave_moe_layer_step") or 1,
    }


def _minimax_m2(keys: Keys) -> Settings:
    return {**keys.standard(), **counts(keys, "num_local_experts"), "rotary_dim": keys.integer("rope.dimension_count")}


_LAYER = "model.layers.{}."
_GATE_UP = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
_GPT_OSS_EXPERTS = {
    _LAYER + "mlp.experts.gate_up_proj": Joined(_GATE_UP, "interleaved", transposed=True),
    _LAYER + "mlp.experts.gate_up_proj_bias": Joined(("ffn_gate_exps.bias", "ffn_up_exps.bias"), "interleaved"),
}
_GRANITE_EXPERTS = {
    _LAYER + "block_sparse_moe.input_linear.weight": Joined(_GATE_UP),
    _LAYER + "shared_mlp.input_linear.weight": Joined(("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), axis=0),
}
# kv_b of each head: keys [nope, lora], stored turned, and values [v, lora].
_LATENT = {
    _LAYER + "self_attn.kv_b_proj.weight": Joined(
        ("attn_k_b.weight", "attn_v_b.weight"), turned=("attn_k_b.weight",), flat=True
    )
}

MIXTRAL = GgufFamily("mixtral", names.MIXTRAL, _mixtral, HALVES)  # the architecture "llama" with experts
EXPERTS: Mapping[str, GgufFamily] = {
    "qwen2moe": GgufFamily("qwen2_moe", names.QWEN2_MOE, _qwen2_moe, squeezed={"ffn_gate_inp_shexp.weight": 0}),
    "qwen3moe": GgufFamily("qwen3_moe", names.QWEN3_MOE, _qwen3_moe),
    "olmoe": GgufFamily("olmoe", names.QWEN3_MOE, _olmoe),
    "granitemoe": GgufFamily("granitemoe", names.GRANITE_MOE, _granite_moe, HALVES, joined=_GRANITE_EXPERTS),
    "phimoe": GgufFamily("phimoe", names.MIXTRAL, _phimoe),
    "gpt-oss": GgufFamily(
        "gpt_oss", names.GPT_OSS, _gpt_oss, transposed=frozenset({"ffn_down_exps"}), joined=_GPT_OSS_EXPERTS
    ),
    "deepseek2": GgufFamily("deepseek_v2", names.DEEPSEEK, _deepseek, joined=_LATENT),
    "glm4moe": GgufFamily("glm4_moe", names.GLM4_MOE, _glm4_moe),
    "minimax-m2": GgufFamily("minimax_m2", names.MINIMAX_M2, _minimax_m2),
    "ernie4_5-moe": GgufFamily("ernie4_5_moe", names.ERNIE_MOE, _ernie_moe, squeezed={"exp_probs_b.bias": 0}),
}
