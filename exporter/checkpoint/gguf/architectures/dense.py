"""What each dense GGUF architecture is in Hugging Face's terms: its configuration, and its row of the table."""

from collections.abc import Mapping

from .. import names
from ..config import Keys, Settings, present, renamed
from ..family import CONV1D, GgufFamily, biased, standard
from ..orders import GROUPED, HALVES


def llama(keys: Keys) -> Settings:
    """Llama's keys, with biases as the tensors have them."""
    return {
        **keys.standard(),
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "mlp_bias": keys.has("blk.0.ffn_down.bias"),
    }


def _ministral3(keys: Keys) -> Settings:
    settings = keys.standard()
    beta = keys.get("attention.temperature_scale")
    return settings if beta is None else _with_rope(settings, llama_4_scaling_beta=beta)


def _with_rope(settings: Settings, **rope: object) -> Settings:
    return {**settings, "rope_parameters": {**settings["rope_parameters"], **rope}}


def gemma(keys: Keys, kv_heads: int | None = None, width: int | None = None) -> Settings:
    """With the activation under its own key."""
    settings = keys.standard(kv_heads=kv_heads, width=width)
    del settings["hidden_act"]
    return {**settings, "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(keys: Keys) -> Settings:
    return {
        **gemma(keys),
        "attn_logit_softcapping": keys.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.get("final_logit_softcapping", 30.0),
        "sliding_window": keys.integer("attention.sliding_window", 4096),
        "layer_types": keys.layer_types(2),
        "query_pre_attn_scalar": _query_scalar(keys, large=46),
    }


def _gemma3(keys: Keys) -> Settings:
    settings = gemma(keys)
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    return {
        **settings,
        "rope_parameters": {"full_attention": settings["rope_parameters"], "sliding_attention": local},
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": keys.layer_types(6),
        "query_pre_attn_scalar": _query_scalar(keys, large=62),
        **present(final_logit_softcapping=keys.get("final_logit_softcapping")),
    }


def _query_scalar(keys: Keys, large: int) -> float:
    """What queries are divided by the root of: the head size, but H / N in the 27B models, known by their depth."""
    scale = keys.get("attention.scale")
    if scale:
        return float(round(scale**-2, 3))
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    return float(hidden / heads if keys.layers == large else keys.head_dim)


def _phi(keys: Keys) -> Settings:
    return {**keys.standard("layer_norm_eps"), "hidden_act": "gelu_new", "qk_layernorm": False}


def phi3(keys: Keys) -> Settings:
    """With the window and the length that the model was first trained for."""
    window = keys.get("attention.sliding_window")
    original = keys.get("rope.scaling.original_context_length")
    return {**keys.standard(), **present(sliding_window=window or None, original_max_position_embeddings=original)}


def _gpt2(keys: Keys) -> Settings:
    settings = keys.standard("layer_norm_epsilon")
    short = renamed(
        settings, n_embd="hidden_size", n_layer="num_hidden_layers", n_head="num_attention_heads",
        n_positions="max_position_embeddings", n_inner="intermediate_size", vocab_size="vocab_size",
        tie_word_embeddings="tie_word_embeddings", layer_norm_epsilon="layer_norm_epsilon",
    )  # fmt: skip
    return {**short, "activation_function": "gelu_new"}


def _starcoder(keys: Keys) -> Settings:
    return {**_gpt2(keys), "activation_function": "gelu_pytorch_tanh", "multi_query": True}


def _gpt_neox(keys: Keys) -> Settings:
    return {
        **keys.standard("layer_norm_eps"),
        "hidden_act": "gelu",
        "attention_bias": keys.has("blk.0.attn_qkv.bias"),
        "use_parallel_residual": bool(keys.get("use_parallel_residual", True)),
    }


def _falcon(keys: Keys) -> Settings:
    settings, two_norms = keys.standard("layer_norm_epsilon"), keys.has("blk.0.attn_norm_2.weight")
    short = renamed(
        settings, hidden_size="hidden_size", num_hidden_layers="num_hidden_layers", vocab_size="vocab_size",
        num_attention_heads="num_attention_heads", num_kv_heads="num_key_value_heads",
        ffn_hidden_size="intermediate_size", max_position_embeddings="max_position_embeddings",
        rope_parameters="rope_parameters", tie_word_embeddings="tie_word_embeddings",
        layer_norm_epsilon="layer_norm_epsilon",
    )  # fmt: skip
    several = settings["num_key_value_heads"] > 1
    return {
        **short,
        "activation": "gelu",
        "alibi": False,
        "bias": keys.has("blk.0.attn_qkv.bias"),
        "parallel_attn": True,
        "multi_query": not several,
        "new_decoder_architecture": several,
        "num_ln_in_parallel_attn": 2 if two_norms else 1,
    }


def _bloom(keys: Keys) -> Settings:
    return renamed(
        keys.standard("layer_norm_epsilon"), hidden_size="hidden_size", n_layer="num_hidden_layers",
        n_head="num_attention_heads", vocab_size="vocab_size", seq_length="max_position_embeddings",
        tie_word_embeddings="tie_word_embeddings", layer_norm_epsilon="layer_norm_epsilon",
    )  # fmt: skip


def _mpt(keys: Keys) -> Settings:
    settings = keys.standard("layer_norm_epsilon")
    short = renamed(
        settings, d_model="hidden_size", n_layers="num_hidden_layers", n_heads="num_attention_heads",
        max_seq_len="max_position_embeddings", vocab_size="vocab_size", tie_word_embeddings="tie_word_embeddings",
        layer_norm_epsilon="layer_norm_epsilon",
    )  # fmt: skip
    clip = keys.get("attention.clamp_kqv") or None
    attention = {"alibi": True, "alibi_bias_max": keys.get("attention.max_alibi_bias", 8.0), "clip_qkv": clip}
    ratio = settings["intermediate_size"] // settings["hidden_size"]
    return {**short, "expansion_ratio": ratio, "attn_config": attention}


def _stablelm(keys: Keys) -> Settings:
    return {
        **keys.standard("layer_norm_eps"),
        "use_qkv_bias": keys.has("blk.0.attn_q.bias"),
        "qk_layernorm": keys.has("blk.0.attn_q_norm.weight"),
        "use_parallel_residual": not keys.has("blk.0.ffn_norm.weight"),
    }


def _olmo(keys: Keys) -> Settings:
    settings = keys.standard()
    del settings["rms_norm_eps"]
    return {**settings, **present(clip_qkv=keys.get("attention.clamp_kqv"))}


def _olmo2(keys: Keys) -> Settings:
    window = keys.get("attention.sliding_window")
    if not window:
        return keys.standard()
    return {**keys.standard(), "sliding_window": window, "layer_types": keys.layer_types(4)}


def granite(keys: Keys) -> Settings:
    """With its four multipliers."""
    multipliers = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return {**llama(keys), **present(**{name: keys.get(key) for name, key in multipliers.items()})}


def _cohere(keys: Keys) -> Settings:
    settings = {**keys.standard("layer_norm_eps"), "logit_scale": keys.get("logit_scale", 0.0625)}
    return {**settings, "use_qk_norm": keys.has("blk.0.attn_q_norm.weight")}


def _cohere2(keys: Keys) -> Settings:
    return {
        **keys.standard("layer_norm_eps"),
        "logit_scale": keys.get("logit_scale", 0.0625),
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": keys.layer_types(4),
    }


def _arcee(keys: Keys) -> Settings:
    return {**llama(keys), "hidden_act": "relu2"}


def _seed_oss(keys: Keys) -> Settings:
    return {**llama(keys), "attention_out_bias": keys.has("blk.0.attn_output.bias")}


def _exaone4(keys: Keys) -> Settings:
    window = keys.get("attention.sliding_window")
    types = keys.layer_types(4) if window else ["full_attention"] * keys.layers
    return {**keys.standard(), **present(sliding_window=window or None), "layer_types": types}


def _nemotron(keys: Keys) -> Settings:
    biases = {"attention_bias": keys.has("blk.0.attn_q.bias"), "mlp_bias": keys.has("blk.0.ffn_down.bias")}
    return {**keys.standard("norm_eps"), "hidden_act": "relu2", **biases}


def _starcoder2(keys: Keys) -> Settings:
    return {
        **keys.standard("norm_epsilon"), "hidden_act": "gelu_pytorch_tanh", "use_bias": keys.has("blk.0.attn_q.bias")
    }  # fmt: skip


def _ernie(keys: Keys) -> Settings:
    return {**keys.standard(), "use_bias": keys.has("blk.0.attn_q.bias")}


def _glm(keys: Keys) -> Settings:
    bias = keys.has("blk.0.attn_qkv.bias") or keys.has("blk.0.attn_q.bias")
    return {**keys.standard(), "attention_bias": bias}


DENSE: Mapping[str, GgufFamily] = {
    "llama": GgufFamily("llama", names.LLAMA, llama, HALVES),
    "internlm2": GgufFamily("llama", names.LLAMA, llama, HALVES),
    "mistral3": GgufFamily("ministral3", names.LLAMA, _ministral3, HALVES),
    "qwen2": GgufFamily("qwen2", names.LLAMA, standard),
    "qwen3": GgufFamily("qwen3", names.QWEN3, biased),
    "gemma": GgufFamily("gemma", names.LLAMA, gemma, norm_shift=-1.0),
    "gemma2": GgufFamily("gemma2", names.GEMMA2, _gemma2, norm_shift=-1.0),
    "gemma3": GgufFamily("gemma3_text", names.GEMMA2, _gemma3, norm_shift=-1.0),
    "phi2": GgufFamily("phi", names.PHI, _phi),
    "phi3": GgufFamily("phi3", names.PHI3, phi3),
    "gpt2": GgufFamily("gpt2", names.GPT2, _gpt2, transposed=CONV1D),
    "starcoder": GgufFamily("gpt_bigcode", names.GPT2, _starcoder),
    "gptneox": GgufFamily("gpt_neox", names.GPT_NEOX, _gpt_neox, GROUPED),
    "starcoder2": GgufFamily("starcoder2", names.STARCODER2, _starcoder2),
    "falcon": GgufFamily("falcon", names.FALCON, _falcon, GROUPED),
    "bloom": GgufFamily("bloom", names.BLOOM, _bloom, GROUPED),
    "mpt": GgufFamily("mpt", names.MPT, _mpt),
    "stablelm": GgufFamily("stablelm", names.STABLELM, _stablelm),
    "olmo": GgufFamily("olmo", names.LLAMA, _olmo, HALVES),
    "olmo2": GgufFamily("olmo2", names.OLMO2, _olmo2),
    "granite": GgufFamily("granite", names.LLAMA, granite, HALVES),
    "command-r": GgufFamily("cohere", names.QWEN3, _cohere),
    "cohere2": GgufFamily("cohere2", names.LLAMA, _cohere2),
    "smollm3": GgufFamily("smollm3", names.LLAMA, standard, HALVES),
    "arcee": GgufFamily("arcee", names.LLAMA, _arcee, HALVES),
    "seed_oss": GgufFamily("seed_oss", names.SEED_OSS, _seed_oss),
    "exaone4": GgufFamily("exaone4", names.OLMO2, _exaone4),
    "nemotron": GgufFamily("nemotron", names.LLAMA, _nemotron, norm_shift=-1.0),
    "ernie4_5": GgufFamily("ernie4_5", names.LLAMA, _ernie),
    "hunyuan-dense": GgufFamily("hunyuan_v1_dense", names.HUNYUAN, biased),
    "chatglm": GgufFamily("glm", names.GLM, _glm),
    "glm4": GgufFamily("glm4", names.GLM, _glm),
}
