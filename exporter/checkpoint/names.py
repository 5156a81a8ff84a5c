"""Which tensors of a folder belong to the text model, under the names its architecture uses.

Multimodal checkpoints hold the text model under a prefix; base models lack the prefix of the class with a head;
some files carry buffers that are computed, not learned.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# Prefix in the file -> prefix of the text model alone. The first row whose prefix occurs decides.
NESTED: tuple[tuple[tuple[str, str], ...], ...] = (
    (("model.language_model.model.", "model."), ("model.language_model.lm_head.", "lm_head.")),
    (("model.language_model.", "model."), ("lm_head.", "lm_head.")),
    (("language_model.model.", "model."), ("language_model.lm_head.", "lm_head.")),
    (("model.text_model.", "model."), ("lm_head.", "lm_head.")),
    (("text_model.model.", "model."), ("text_model.lm_head.", "lm_head.")),
    (("language_model.", "model."), ("lm_head.", "lm_head.")),
)

# A base model is recognised by the name of its embedding at the root.
BASE_PREFIX = {
    "embed_tokens.weight": "model.",
    "decoder.embed_tokens.weight": "model.",
    "wte.weight": "transformer.",
    "word_embeddings.weight": "transformer.",
    "embed_in.weight": "gpt_neox.",
}

COMPUTED = re.compile(
    r"(\.rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)|(^|\.)position_ids"
    r"|\.attn\.(masked_)?bias|\.attention\.(masked_)?bias)$"
    # Other heads than that of the language model: of rewards, values and further tokens. One of classes is kept.
    r"|^mtp\.|^v_head\.|^value_head\.|^reward_head\."
)


def text_model_tensors(tensors: Mapping[str, T], config: Mapping[str, Any], nested: bool) -> dict[str, T]:
    """Drop what is not the text model and give the rest its canonical names.

    Args:
        tensors: by stored name.
        config: of the text model; `num_hidden_layers` bounds the layers that are kept.
        nested: the file's config had a `text_config`.
    """
    named = _unwrap(tensors) if nested else dict(tensors)
    prefix = next((prefix for root, prefix in BASE_PREFIX.items() if root in named), "")
    kept = {prefix + name: tensor for name, tensor in named.items() if not COMPUTED.search(name)}
    return {name: tensor for name, tensor in kept.items() if not _is_extra_layer(name, config)}


def _unwrap(tensors: Mapping[str, T]) -> dict[str, T]:
    for rules in NESTED:
        if any(name.startswith(rules[0][0]) for name in tensors):
            return {
                inner + name.removeprefix(outer): tensor
                for name, tensor in tensors.items()
                for outer, inner in rules
                if name.startswith(outer)
            }
    return dict(tensors)


def _is_extra_layer(name: str, config: Mapping[str, Any]) -> bool:
    """Multi-token prediction heads are stored as layers beyond the last."""
    layers = config.get("num_hidden_layers")
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return bool(match) and isinstance(layers, int) and int(match.group(1)) >= layers  # type: ignore[union-attr]
