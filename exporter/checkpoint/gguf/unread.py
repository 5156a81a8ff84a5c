"""Metadata that nobody read: neutral, known not to matter, or an error. What changes a model is never left out."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import CheckpointError, UnsupportedError

from ..generation import checked_settings
from .config import Keys

# Facts about the file or the model's making, and what only images and several axes of positions need.
NO_INFLUENCE = frozenset(
    """
    vocab_size tensor_data_layout rope.scaling.finetuned rope.dimension_sections n_deepstack_layers
    attention.layer_norm_epsilon attention.layer_norm_rms_epsilon block_count context_length
    feed_forward_length decoder_start_token_id
    """.split()  # noqa: SIM905
)
_SIGMOIDS = ("glm4moe", "minimax-m2", "lfm2moe")  # architectures whose routers always have them, normalized
_OFF: tuple[Any, ...] = (0, False, None)
# What a value must be to change nothing, where nobody reads it.
NEUTRAL: Mapping[str, Callable[[Any, Keys], bool]] = {
    **dict.fromkeys(
        ("attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping", "attention.clamp_kqv",
         "attention.max_alibi_bias", "expert_count", "expert_used_count", "expert_shared_count", "nextn_predict_layers",
         "expert_shared_feed_forward_length", "leading_dense_block_count",
         "expert_group_count", "expert_group_used_count", "attention.shared_kv_layers", "expert_group_scale",
         "attention.temperature_scale", "attention.temperature_length", "attention.sliding_window_pattern",
         "interleave_moe_layer_step", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
        lambda value, _keys: value in _OFF,
    ),
    **dict.fromkeys(
        ("logit_scale", "embedding_scale", "residual_scale", "expert_weights_scale", "attention.output_scale"),
        lambda value, _keys: value in (*_OFF, 1),
    ),
    **dict.fromkeys(
        ("rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"),
        lambda value, keys: value in (*_OFF, 1) or keys.get("rope.scaling.type") == "none",
    ),
    **dict.fromkeys(
        ("rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
         "rope.scaling.yarn_log_multiplier"),
        lambda _value, keys: keys.get("rope.scaling.type") != "yarn",
    ),
    "rope.scaling.yarn_ext_factor": lambda value, keys: value in (-1, 1) or keys.get("rope.scaling.type") != "yarn",
    "pooling_type": lambda value, _keys: value in (-1, 0, 1, 2, 3),  # `open_gguf` tells what they say
    "rope.scaling.type": lambda value, _keys: value in ("none", "linear"),
    "rope.scaling.alpha": lambda value, _keys: value in _OFF,
    "attention.causal": lambda value, _keys: value is True,
    "use_parallel_residual": lambda value, _keys: value is False,
    "expert_gating_func": lambda value, keys: value == 2 if keys.architecture in _SIGMOIDS else value in (0, 1),
    "expert_weights_norm": lambda value, keys: bool(value) == (keys.architecture in _SIGMOIDS),
    # Gemma 3n's own: the normal quantile of 0.95 in the first layers.
    "activation_sparsity_scale": lambda value, keys: value <= 0
    or (keys.architecture == "gemma3n" and bool(np.isclose(value, 1.6448536, rtol=1e-4))),
    "expert_feed_forward_length": lambda value, keys: value in (*_OFF, keys.get("feed_forward_length")),
    "rope.freq_base_swa": lambda value, keys: value == keys.get("rope.freq_base"),
    "attention.sliding_window": lambda value, keys: value in _OFF or value >= keys.integer("context_length"),
    "attention.scale": lambda value, keys: value in _OFF or bool(np.isclose(value, keys.head_dim**-0.5, rtol=1e-4)),
    **dict.fromkeys(
        ("attention.value_length", "attention.key_length", "attention.key_length_swa", "attention.value_length_swa",
         "rope.dimension_count", "rope.dimension_count_swa"),
        lambda value, keys: value in (keys.head_dim, keys.get("attention.key_length_swa")),
    ),
}  # fmt: skip

TOKENIZER = frozenset(
    """
    model pre tokens token_type token_type_count scores merges bos_token_id eos_token_id eot_token_id eom_token_id
    unknown_token_id seperator_token_id separator_token_id padding_token_id mask_token_id cls_token_id add_bos_token
    add_eos_token add_space_prefix fim_pre_token_id fim_suf_token_id fim_mid_token_id fim_pad_token_id fim_rep_token_id
    fim_sep_token_id prefix_token_id suffix_token_id middle_token_id eog_token_ids
    """.split()  # noqa: SIM905
)
TOKENIZER_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_sep_token": (False,), "remove_extra_whitespaces": (False,), "precompiled_charsmap": (),
    "byte_fallback": (True,),
}  # fmt: skip
# About the file, its makers and its making.
ABOUT = re.compile(
    r"general\.(type|architecture|quantization_version|alignment|file_type|name|author|version|organization|finetune|"
    r"basename|description|quantized_by|size_label|license(\.name|\.link)?|url|doi|uuid|repo_url|source\..*|tags|"
    r"languages|datasets|(base_model|dataset)\.(count|\d+\.\w+)|parameter_count)$"
    r"|split\.|quantize\.|imatrix\.|mradermacher\.|llama\.cpp\."
)


# How the file's makers want it to be sampled, in the words of generation_config.json.
SAMPLING: Mapping[str, str] = {
    "general.sampling.temp": "temperature", "general.sampling.top_k": "top_k", "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p", "general.sampling.penalty_repeat": "repetition_penalty",
}  # fmt: skip


def sampling_settings(metadata: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Of the file, neutral values left out.

    Raises:
        CheckpointError: a value that no run would accept.
    """
    found = {name: metadata[key] for key, name in SAMPLING.items() if key in metadata}
    return checked_settings(found, path)[0]


def require_all_read(keys: Keys) -> list[str]:
    """Refuse what would change the model, and return what a user should know.

    Raises:
        UnsupportedError: a key of the architecture or of the tokenizer that nobody reads, and that is not neutral.
    """
    told = []
    kind = keys.file.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedError(
            f"{keys.file.path}: general.type is {kind!r}: not a model of its own. Give the file of the model itself."
        )
    for key, value in keys.file.metadata.items():
        if key.startswith(f"{keys.architecture}."):
            _require_neutral(keys, key.removeprefix(f"{keys.architecture}."), value)
        elif key.startswith("tokenizer."):
            _require_tokenizer(keys, key, value)
        elif not ABOUT.match(key) and key not in SAMPLING:
            told.append(key)
    return [f"{keys.file.path}: metadata {', '.join(told)}: not read."] if told else []


def _require_neutral(keys: Keys, key: str, value: Any) -> None:
    values = list(value) if isinstance(value, np.ndarray) else [value]
    if not all(math.isfinite(item) for item in values if isinstance(item, float | np.floating)):
        raise CheckpointError(f"{keys.file.path}: metadata {keys.architecture}.{key} is {value}, which is no number.")
    if key in keys.read or key in NO_INFLUENCE:
        return
    if key in NEUTRAL and all(NEUTRAL[key](item, keys) for item in values):
        return
    raise UnsupportedError(
        f"{keys.file.path}: metadata {keys.architecture}.{key} = {value!r:.60} is not read for this architecture, and "
        "it may change what the model computes. Export from the original Hugging Face folder instead."
    )


def _require_tokenizer(keys: Keys, key: str, value: Any) -> None:
    name = key.removeprefix("tokenizer.ggml.")
    if name in TOKENIZER or key in (
        "tokenizer.huggingface.json",
        "tokenizer.chat_template",
        "tokenizer.chat_templates",
    ):
        return
    if key.startswith("tokenizer.chat_template.") or value in TOKENIZER_NEUTRAL.get(name, ()):
        return
    if isinstance(value, list | np.ndarray) and len(value) == 0:
        return
    raise UnsupportedError(
        f"{keys.file.path}: metadata {key} = {value!r:.60} is not read, and it may change the ids of a text. Export "
        "from the original Hugging Face folder instead."
    )
