"""Where a graph's weights come from: tables from initializers to checkpoint tensors, and how those are stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .description import Layer

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """Checkpoint tensors, stacked along the output channels into one initializer.

    Initializers that are stacks of matrices, one an expert, are made of tensors whose names have an `{e}`, or of one
    tensor that holds all matrices.

    Args:
        tensors: their names, `{i}` being the layer.
        stored: "out_in" as torch's Linear, "in_out" as GPT-2's Conv1D, or "row" for a vector in a matrix of one row.
        order: row j of the stack, such as packed `[q | k | v]`, is row `order(layer)[j]` as stored.
        each_head: the one name has a `{head}`; those of all heads are the rows of a matrix.
        otherwise: names to take instead, in files that have these.
    """

    tensors: tuple[str, ...]
    stored: str = "out_in"
    order: Callable[[Layer], Index] | None = None
    each_head: bool = False
    otherwise: tuple[str, ...] = ()


Table = Mapping[str, Source]
UNUSED = ""  # the row of a table that names tensors which are in files and not in the model

LAYER = "model.layers.{i}."


def table(**sources: str | tuple[str, ...] | Source) -> dict[str, Source]:
    """Rows by short names: `qkv_weight="..."` stands for `model.layers.{i}.self_attn.qkv_proj.weight`."""
    return {SHORT[short]: _source(source) for short, source in sources.items()}


def linear(short: str, *modules: str, stored: str = "out_in", order: Callable[[Layer], Index] | None = None) -> Table:
    """Weight and bias of one linear layer, from the modules that are stacked into it."""
    return {
        SHORT[f"{short}_{part}"]: Source(tuple(f"{module}.{part}" for module in modules), stored, order)
        for part in ("weight", "bias")
    }


def norm(short: str, module: str) -> Table:
    """Weight and bias of one norm."""
    return {SHORT[f"{short}_{part}"]: Source((f"{module}.{part}",)) for part in ("weight", "bias")}


def gated(short: str, module: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Table:
    """The matrices of a gated MLP, or of experts where `module` has an `{e}`; `short` is "", "experts" or "shared"."""
    prefix = f"{short}_" if short else ""
    return {
        **linear(f"{prefix}gate_up", f"{module}.{gate}", f"{module}.{up}"),
        **linear(f"{prefix}down", f"{module}.{down}"),
    }


def experts(module: str) -> Table:
    """Gated experts one by one, or all in one tensor, gates before ups."""
    apart = tuple(f"{module}.{{e}}.{part}_proj.weight" for part in ("gate", "up"))
    return table(
        experts_gate_up_weight=Source(apart, otherwise=(f"{module}.gate_up_proj",)),
        experts_down_weight=Source((f"{module}.{{e}}.down_proj.weight",), otherwise=(f"{module}.down_proj",)),
    )


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
    "q": LAYER + "self_attn.q_proj",
    "qk": LAYER + "self_attn.qk_proj",
    "q_a": LAYER + "self_attn.q_a_proj",
    "q_a_norm": LAYER + "self_attn.q_a_layernorm",
    "q_b": LAYER + "self_attn.q_b_proj",
    "kv_a": LAYER + "self_attn.kv_a_proj",
    "kv_a_norm": LAYER + "self_attn.kv_a_layernorm",
    "gate_up": LAYER + "mlp.gate_up_proj",
    "up": LAYER + "mlp.up_proj",
    "down": LAYER + "mlp.down_proj",
    "router": LAYER + "mlp.gate",
    "experts_gate_up": LAYER + "mlp.experts.gate_up_proj",
    "experts_down": LAYER + "mlp.experts.down_proj",
    "shared_gate_up": LAYER + "mlp.shared_expert.gate_up_proj",
    "shared_down": LAYER + "mlp.shared_expert.down_proj",
    "shared_gate": LAYER + "mlp.shared_expert_gate",
    "per_layer_embed": "model.per_layer_inputs.embed_tokens",
    "per_layer_projection": "model.per_layer_inputs.projection",
    "per_layer_norm": "model.per_layer_inputs.norm",
    "input_gate": LAYER + "per_layer_input.gate",
    "input_projection": LAYER + "per_layer_input.projection",
    "input_norm": LAYER + "per_layer_input.norm",
    "conv_in": LAYER + "short_conv.in_proj",
    "conv": LAYER + "short_conv.conv",
    "conv_out": LAYER + "short_conv.out_proj",
    "delta_in": LAYER + "linear_attn.in_proj",
    "delta_conv": LAYER + "linear_attn.conv",
    "delta_norm": LAYER + "linear_attn.norm",
    "delta_out": LAYER + "linear_attn.out_proj",
    "mamba_in": LAYER + "mamba.in_proj",
    "mamba_conv": LAYER + "mamba.conv",
    "mamba_out": LAYER + "mamba.out_proj",
    "beside_pre_norm": LAYER + "beside.pre_norm",
    "beside_post_norm": LAYER + "beside.post_norm",
    "beside_mlp_norm": LAYER + "beside.mlp_norm",
    "beside_router": LAYER + "beside.moe.gate",
    "beside_router_norm": LAYER + "beside.moe.gate.norm",
    "beside_gate_up": LAYER + "beside.moe.experts.gate_up_proj",
    "beside_down": LAYER + "beside.moe.experts.down_proj",
    "spread": "model.spread.projections.{i}",
    "gather": "model.gather.projections.{i}",
    "altup_norm": LAYER + "altup.router_norm",
    "altup_router": LAYER + "altup.modality_router",
    "altup_predict": LAYER + "altup.prediction_coefs",
    "altup_correct": LAYER + "altup.correction_coefs",
    "laurel_left": LAYER + "laurel.linear_left",
    "laurel_right": LAYER + "laurel.linear_right",
    "laurel_norm": LAYER + "laurel.norm",
}
SHORT = {f"{short}_{part}": f"{module}.{part}" for short, module in _MODULES.items() for part in ("weight", "bias")}
SHORT["sinks"] = LAYER + "self_attn.sinks"
SHORT["k_up"], SHORT["v_up"] = LAYER + "self_attn.k_up", LAYER + "self_attn.v_up"
SHORT["altup_scale"] = LAYER + "altup.correct_output_scale"
SHORT["beside_expert_scale"] = LAYER + "beside.moe.gate.expert_scale"
SHORT |= {f"delta_{part}": f"{LAYER}linear_attn.{part}" for part in ("dt_bias", "a_log")}
SHORT |= {f"mamba_{part}": f"{LAYER}mamba.{part}" for part in ("dt_bias", "a_log", "d", "norm_weight")}
SHORT |= {alpha: f"{LAYER}mlp.act_fn.{alpha}" for alpha in ("alpha_p", "alpha_n")}
SHORT["layer_scalar"] = LAYER + "layer_scalar"
SHORT["correction"] = LAYER + "mlp.gate.correction"

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
    **gated("", LAYER + "mlp"),
    **linear("up", _MLP + "up_proj"),
}


def per_head_qkv(layer: Layer) -> Index:
    """Stored `[head][q, k, v][D]` (GPT-NeoX, BLOOM, Falcon-RW)."""
    attention = layer.attends
    rows = np.arange(3 * attention.num_heads * attention.head_dim).reshape(attention.num_heads, 3, attention.head_dim)
    return np.concatenate([rows[:, part].reshape(-1) for part in range(3)])


def per_group_qkv(layer: Layer) -> Index:
    """Stored per key/value head: its query heads, then k, then v (Falcon's new architecture)."""
    attention = layer.attends
    group = attention.num_heads // attention.kv_heads
    flat = np.arange(attention.kv_heads * (group + 2) * attention.head_dim)
    rows = flat.reshape(attention.kv_heads, group + 2, attention.head_dim)
    return np.concatenate([rows[:, :-2].reshape(-1), rows[:, -2].reshape(-1), rows[:, -1].reshape(-1)])


def codegen_qkv(layer: Layer) -> Index:
    """Stored as 4 blocks of q, v, k (CodeGen's tensor-parallel layout)."""
    attention = layer.attends
    rows = np.arange(3 * attention.num_heads * attention.head_dim).reshape(4, 3, -1)
    return np.concatenate([rows[:, 0].reshape(-1), rows[:, 2].reshape(-1), rows[:, 1].reshape(-1)])
