"""How one GGUF architecture maps to Hugging Face: what each file in `architectures` holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..checkpoint import FloatArray
from .config import Keys, Settings
from .joined import Joined
from .names import Names
from .orders import Order
from .tensor import Function


@dataclass(frozen=True)
class GgufFamily:
    """One `general.architecture`.

    Args:
        model_type: Hugging Face's name of the family.
        rows: GGUF names to Hugging Face names where the gguf package's table deviates (see `names`).
        config: metadata to config.json, without `model_type`.
        orders: by GGUF name within a layer, how to put rows back.
        transposed: GGUF names within a layer of matrices that are [in, out] in Hugging Face.
        norm_shift: added to norm weights: they are stored as 1 + w.
        joined: Hugging Face names of tensors that are stored in parts.
        squeezed: GGUF names within a layer, with ending, of tensors that lack a dimension of one, and its place.
        columns: by GGUF name within a layer, how to put columns back.
        functions: by GGUF name within a layer, what recovers the Hugging Face values.
        variant: what a file is by what it holds, where one architecture stands for several families.
        also: the other model types that a variant, or the configuration, may give it.
    """

    model_type: str
    rows: Names
    config: Callable[[Keys], Settings]
    orders: Mapping[str, Order] = field(default_factory=dict)
    transposed: frozenset[str] = frozenset()
    norm_shift: float = 0.0
    joined: Mapping[str, Joined] = field(default_factory=dict)
    squeezed: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, Order] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    variant: "Callable[[Keys, GgufFamily], GgufFamily] | None" = None
    also: tuple[str, ...] = ()


CONV1D = frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"})


def standard(keys: Keys) -> Settings:
    """Llama's keys and no others."""
    return keys.standard()


def biased(keys: Keys) -> Settings:
    """Llama's keys and `attention_bias`."""
    return {**keys.standard(), "attention_bias": keys.has("blk.0.attn_q.bias")}


def counts(keys: Keys, experts: str) -> Settings:
    """How many experts there are, under the name `experts`, and how many each token uses."""
    return {experts: keys.integer("expert_count"), "num_experts_per_tok": keys.integer("expert_used_count")}


def _log_of_negative(values: FloatArray) -> FloatArray:
    """From -exp(A_log) to A_log."""
    return np.log(-values)


DECAY = {"ssm_a": _log_of_negative}  # of recurrent layers
