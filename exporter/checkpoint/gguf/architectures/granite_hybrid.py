"""Granite 4, with Mamba layers."""

from collections.abc import Mapping
from dataclasses import replace

from ..config import Keys, Settings
from ..family import DECAY, GgufFamily
from ..joined import Joined
from ..names import LAYER
from ..orders import HALVES
from .granite import granite


def _granite_hybrid(keys: Keys) -> Settings:
    """Layers without key heads are Mamba 2."""
    settings = granite(keys)
    for key in ("mlp_bias", "head_dim"):
        settings.pop(key)
    heads, inner = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    shared = keys.get("expert_shared_feed_forward_length") or settings["intermediate_size"]
    rotary = keys.get("rope.scaling.finetuned", True)  # how this architecture says whether it rotates at all
    experts = {
        "num_local_experts": keys.get("expert_count", 0),
        "num_experts_per_tok": keys.get("expert_used_count", 0),
    }
    return {
        **settings,
        **experts,
        "shared_intermediate_size": shared,
        "layer_types": ["attention" if n else "mamba" for n in keys.per_layer("attention.head_count_kv")],
        "position_embedding_type": "rope" if rotary else None,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // settings["hidden_size"],
        "mamba_n_groups": keys.integer("ssm.group_count"),
        "mamba_d_state": keys.integer("ssm.state_size"),
        "mamba_d_conv": keys.integer("ssm.conv_kernel"),
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in keys.file.tensors),
        "mamba_proj_bias": any(name.endswith("ssm_in.bias") for name in keys.file.tensors),
    }


_SHARED = LAYER + "shared_mlp.input_linear.weight"
_GRANITE = {
    LAYER + "block_sparse_moe.input_linear.weight": Joined(("ffn_gate_exps.weight", "ffn_up_exps.weight")),
    _SHARED: Joined(("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), axis=0),
}
GRANITE_DENSE = {_SHARED: Joined(("ffn_gate.weight", "ffn_up.weight"), axis=0)}


def _without_experts(keys: Keys, family: GgufFamily) -> GgufFamily:
    """Without experts, what would be shared has the plain names."""
    return family if keys.get("expert_count") else replace(family, joined=GRANITE_DENSE)


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "granitehybrid": GgufFamily(
        "granitemoehybrid",
        {
            "blk.{}.ffn_down": "model.layers.{}.shared_mlp.output_linear",
            "blk.{}.ssm_dt.bias": "model.layers.{}.mamba.dt_bias",
        },
        _granite_hybrid,
        HALVES,
        joined=_GRANITE,
        squeezed={"ssm_conv1d.weight": 1},
        functions=DECAY,
        variant=_without_experts,
    ),
}
