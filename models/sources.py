"""Where a graph's weights come from: tables from initializers to checkpoint tensors, and how those are stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .description import Attention

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """Checkpoint tensors, stacked along the output channels into one initializer.

    Args:
        tensors: their names, `{i}` being the layer.
        stored: "out_in" as torch's Linear, or "in_out" as GPT-2's Conv1D.
        order: row j of the stack's packed `[q | k | v]` is row `order(attention)[j]` as stored.
        each_head: the one name has a `{head}`; those of all heads are the rows of a matrix.
    """

    tensors: tuple[str, ...]
    stored: str = "out_in"
    order: Callable[[Attention], Index] | None = None
    each_head: bool = False


Table = Mapping[str, Source]

LAYER = "model.layers.{i}."


def table(**sources: str | tuple[str, ...] | Source) -> dict[str, Source]:
    """Rows by short names: `qkv_weight="..."` stands for `model.layers.{i}.self_attn.qkv_proj.weight`."""
    return {SHORT[short]: _source(source) for short, source in sources.items()}


def linear(
    short: str, *modules: str, stored: str = "out_in", order: Callable[[Attention], Index] | None = None
) -> Table:
    """Weight and bias of one linear layer, from the modules that are stacked into it."""
    return {
        SHORT[f"{short}_{part}"]: Source(tuple(f"{module}.{part}" for module in modules), stored, order)
        for part in ("weight", "bias")
    }


def norm(short: str, module: str) -> Table:
    """Weight and bias of one norm."""
    return {SHORT[f"{short}_{part}"]: Source((f"{module}.{part}",)) for part in ("weight", "bias")}


def _source(source: str | tuple[str, ...] | Source) -> Source:
    if isinstance(source, Source):
        return source
    return Source((source,) if isinstance(source, str) else source)


_MODULES = {
    "embed": "model.embed_tokens",
    "positions": "model.embed_positions",
    "embed_norm": "model.embed_norm",
    "project_in": "model.project_in",
    "project_out": "project_out",
    "final_norm": "model.norm",
    "head": "lm_head",
    "pre_attention": LAYER + "input_layernorm",
    "post_attention": LAYER + "attention_output_layernorm",
    "pre_mlp": LAYER + "post_attention_layernorm",
    "post_mlp": LAYER + "mlp_output_layernorm",
    "qkv": LAYER + "self_attn.qkv_proj",
    "o": LAYER + "self_attn.o_proj",
    "q_norm": LAYER + "self_attn.q_norm",
    "k_norm": LAYER + "self_attn.k_norm",
    "gate_up": LAYER + "mlp.gate_up_proj",
    "up": LAYER + "mlp.up_proj",
    "down": LAYER + "mlp.down_proj",
}
SHORT = {f"{short}_{part}": f"{module}.{part}" for short, module in _MODULES.items() for part in ("weight", "bias")}
SHORT["sinks"] = LAYER + "self_attn.sinks"

_ATTN, _MLP = LAYER + "self_attn.", LAYER + "mlp."

# Llama's names, which most families share.
SKELETON: Table = {
    **table(embed_weight="model.embed_tokens.weight", head_weight="lm_head.weight", head_bias="lm_head.bias"),
    **norm("final_norm", "model.norm"),
    **norm("pre_attention", LAYER + "input_layernorm"),
    **norm("pre_mlp", LAYER + "post_attention_layernorm"),
    **linear("qkv", *(_ATTN + f"{part}_proj" for part in "qkv")),
    **linear("o", _ATTN + "o_proj"),
    **norm("q_norm", _ATTN + "q_norm"),
    **norm("k_norm", _ATTN + "k_norm"),
    **linear("gate_up", _MLP + "gate_proj", _MLP + "up_proj"),
    **linear("up", _MLP + "up_proj"),
    **linear("down", _MLP + "down_proj"),
}


def per_head_qkv(attention: Attention) -> Index:
    """Stored `[head][q, k, v][D]` (GPT-NeoX, BLOOM, Falcon-RW)."""
    rows = np.arange(3 * attention.num_heads * attention.head_dim).reshape(attention.num_heads, 3, attention.head_dim)
    return np.concatenate([rows[:, part].reshape(-1) for part in range(3)])


def per_group_qkv(attention: Attention) -> Index:
    """Stored per key/value head: its query heads, then k, then v (Falcon's new architecture)."""
    group = attention.num_heads // attention.kv_heads
    flat = np.arange(attention.kv_heads * (group + 2) * attention.head_dim)
    rows = flat.reshape(attention.kv_heads, group + 2, attention.head_dim)
    return np.concatenate([rows[:, :-2].reshape(-1), rows[:, -2].reshape(-1), rows[:, -1].reshape(-1)])


def codegen_qkv(attention: Attention) -> Index:
    """Stored as 4 blocks of q, v, k (CodeGen's tensor-parallel layout)."""
    rows = np.arange(3 * attention.num_heads * attention.head_dim).reshape(4, 3, -1)
    return np.concatenate([rows[:, 0].reshape(-1), rows[:, 2].reshape(-1), rows[:, 1].reshape(-1)])
