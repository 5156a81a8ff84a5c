"""Which file describes which `model_type`: an import by name, so that unused families cost nothing."""

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from runtime.errors import CheckpointError, OptionError, UnsupportedError

from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import Table

# model_type → module
FAMILIES: Mapping[str, str] = {
    "llama": "llama",
    "mistral": "mistral",
    "ministral": "mistral",
    "ministral3": "ministral3",
    "cwm": "mistral",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "smollm3": "smollm3",
    "seed_oss": "llama_likes",
    "internlm3": "llama_likes",
    "ernie4_5": "llama_likes",
    "arcee": "llama_likes",
    "helium": "llama_likes",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3_text": "gemma",
    "vaultgemma": "gemma",
    "phi": "phi",
    "phi3": "phi3",
    "granite": "granite",
    "cohere": "cohere",
    "cohere2": "cohere",
    "olmo": "olmo",
    "olmo2": "olmo",
    "olmo3": "olmo",
    "exaone4": "exaone4",
    "nemotron": "nemotron",
    "jais2": "jais2",
    "apertus": "apertus",
    "nanochat": "nanochat",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "glm": "glm",
    "glm4": "glm",
    "hunyuan_v1_dense": "hunyuan",
    "hunyuan_v1_moe": "hunyuan",
    "gpt2": "gpt2",
    "gpt_neo": "gpt2",
    "gpt_bigcode": "gpt2",
    "gptj": "gptj",
    "codegen": "gptj",
    "gpt_neox": "gpt_neox",
    "opt": "opt",
    "bloom": "bloom",
    "mpt": "mpt",
    "falcon": "falcon",
    "mixtral": "mixtral",
    "minimax_m2": "minimax_m2",
    "phimoe": "phimoe",
    "qwen2_moe": "qwen_moe",
    "qwen3_moe": "qwen_moe",
    "olmoe": "olmoe",
    "granitemoe": "granite_moe",
    "granitemoeshared": "granite_moe",
    "gpt_oss": "gpt_oss",
    "glm4_moe": "glm4_moe",
    "ernie4_5_moe": "ernie4_5_moe",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "granitemoehybrid": "granite_hybrid",
    "lfm2": "lfm2",
    "qwen3_next": "qwen_next",
    "qwen3_5_text": "qwen_next",
    "qwen3_5_moe_text": "qwen_next",
    "dots1": "dots1",
    "exaone_moe": "exaone_moe",
    "cohere2_moe": "cohere2_moe",
    "mistral4": "deepseek",
    "glm4_moe_lite": "deepseek",
    "lfm2_moe": "lfm2",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
}


def describe(values: Mapping[str, Any], ignore_keys: Iterable[str] = ()) -> tuple[Decoder, Table]:
    """Read a config.json, refusing keys that nobody understands.

    Args:
        values: the parsed config.json.
        ignore_keys: unknown keys that the user declares irrelevant.

    Raises:
        OptionError: a key to ignore is not there.

    Returns:
        the decoder, and the table from its initializers to the checkpoint's tensors.
    """
    ignored = set(ignore_keys)
    if unknown := sorted(ignored - values.keys()):
        raise OptionError(f"ignore_keys: config.json has no key {unknown[0]!r}. Leave --ignore-key {unknown[0]} out.")
    config = Config({key: value for key, value in values.items() if key not in ignored})
    module = _find_family(values.get("model_type"))
    decoder: Decoder = module.describe(config)
    # A family whose members, or whose settings, store weights differently has a function instead of a table.
    table: Table = module.weights(decoder.model_type, config) if hasattr(module, "weights") else module.WEIGHTS
    config.finish()
    _check_heads(decoder)
    return decoder, table


# Kinds of models that people try, and what they are.
_OTHER_KINDS: Mapping[str, str] = {
    "an encoder": "albert bert camembert deberta deberta-v2 distilbert electra modernbert roberta xlm-roberta xlnet",
    "an encoder with a decoder": "bart led m2m_100 marian mbart mt5 pegasus t5 umt5 whisper",
    "a vision model": "beit clip clip_vision_model convnext detr dinov2 siglip siglip2 swin vit yolos",
    "a speech model": "bark hubert musicgen seamless_m4t wav2vec2 wavlm",
}


def require_family(model_type: object, where: str | Path = "config.json") -> str:
    """The model type, if there is a family of it.

    Raises:
        CheckpointError: it is missing.
        UnsupportedError: no family is called so; says what it is, where that is known, and lists the families.
    """
    supported = ", ".join(sorted(FAMILIES))
    if not isinstance(model_type, str):
        raise CheckpointError(f"{where}: model_type is missing; supported: {supported}.")
    if model_type not in FAMILIES:
        what = next((words for words, types in _OTHER_KINDS.items() if model_type in types.split()), None)
        other = f" It is {what}, and only causal language models can be exported." if what else ""
        raise UnsupportedError(f"{where}: model_type {model_type!r} is not supported.{other} Supported: {supported}.")
    return model_type


def _find_family(model_type: object) -> ModuleType:
    return importlib.import_module(f".{FAMILIES[require_family(model_type)]}", __package__)


def _check_heads(decoder: Decoder) -> None:
    for i, attention in decoder.caching.items():
        if attention.num_heads % attention.kv_heads:
            raise CheckpointError(
                f"config.json: layer {i} has {attention.num_heads} query heads, not a multiple of its "
                f"{attention.kv_heads} key/value heads."
            )
