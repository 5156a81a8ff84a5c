"""Sizes that a multimodal checkpoint's `text_config` leaves out, because they are those of transformers' class.

A config.json of its own always states them.
"""

from collections.abc import Mapping
from typing import Any

_KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "head_dim", "vocab_size", "max_position_embeddings")  # fmt: skip
# None: computed from the others, or as many as heads.
_SIZES: Mapping[str, tuple[int | None, ...]] = {
    "llama": (4096, 11008, 32, 32, None, None, 32000, 2048),
    "mistral": (4096, 14336, 32, 32, 8, None, 32000, 131072),
    "ministral3": (4096, 14336, 34, 32, 8, 128, 131072, 262144),
    "qwen2": (4096, 22016, 32, 32, 32, None, 151936, 32768),
    "qwen3": (4096, 22016, 32, 32, 32, 128, 151936, 32768),
    "gemma": (3072, 24576, 28, 16, 16, 256, 256000, 8192),
    "gemma2": (2304, 9216, 26, 8, 4, 256, 256000, 8192),
    "gemma3_text": (2304, 9216, 26, 8, 4, 256, 262208, 131072),
    "gemma3n_text": (2048, 16384, 35, 8, 2, 256, 262400, 32768),
    "gemma4_text": (2304, 9216, 30, 8, 4, 256, 262144, 131072),
    "cohere": (8192, 22528, 40, 64, None, None, 256000, 8192),
    "cohere2": (8192, 22528, 40, 64, None, None, 256000, 8192),
    "granite": (4096, 11008, 32, 32, None, None, 32000, 2048),
    "phi3": (3072, 8192, 32, 32, None, None, 32064, 4096),
    "smollm3": (2048, 11008, 36, 16, 4, None, 128256, 32768),
    "lfm2": (2560, 12288, 32, 32, 8, None, 65536, 128000),
    "qwen3_5_text": (4096, 12288, 32, 16, 4, 256, 248320, 32768),
    "ernie4_5": (1024, 3072, 18, 16, 2, 128, 103424, 131072),
    "olmo2": (4096, 11008, 32, 32, None, None, 50304, 2048),
    "glm4": (4096, 13696, 40, 32, 2, 128, 151552, 131072),
    "helium": (2560, 7040, 24, 20, 20, 128, 48000, 4096),
}
# The text model of a multimodal one whose text_config does not say what it is.
_TEXT_MODELS: Mapping[str, str] = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "llava": "llama",
    "llava_next": "llama", "vipllava": "llama", "idefics3": "llama", "smolvlm": "llama", "paligemma": "gemma",
    "aya_vision": "cohere2", "mistral3": "mistral", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
    "lfm2_vl": "lfm2", "got_ocr2": "qwen2",
}  # fmt: skip


def complete_text_config(text: Mapping[str, Any], outer_type: object) -> dict[str, Any]:
    """A `text_config` with its model type, and with the sizes that are its class's defaults."""
    model_type = text.get("model_type") or _TEXT_MODELS.get(str(outer_type))
    sizes = dict(zip(_KEYS, _SIZES.get(str(model_type), ()), strict=False))
    known = {key: size for key, size in sizes.items() if size is not None}
    return {**known, **({"model_type": model_type} if model_type else {}), **text}
