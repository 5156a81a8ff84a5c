"""OLMo 1 to 3: norms without weights, then norms on the branches' outputs and on all queries and keys together."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Attention, Decoder, HeadNorm, Norm
from ..decoder.rope import fixed_rope, read_rope
from ..decoder.sources import LAYER, SKELETON, Table, norm

_ON_OUTPUTS = {
    **norm("post_attention", LAYER + "post_attention_layernorm"),
    **norm("post_mlp", LAYER + "post_feedforward_layernorm"),
}


def weights(model_type: str, _config: Config) -> Table:
    """OLMo 1 has no norm tensors; later ones have norms on the outputs of the branches."""
    return SKELETON if model_type == "olmo" else {**SKELETON, **_ON_OUTPUTS}


def describe(config: Config) -> Decoder:
    """The decoder of any of the three generations."""
    model_type = config.take("model_type", str)
    first = model_type == "olmo"
    plain = Norm("layer", 1e-5, weight=False) if first else skeleton.rms(config, default=1e-5)
    changes = {} if first else {"pre_attention": None, "pre_mlp": None, "post_attention": plain, "post_mlp": plain}
    layers = [
        replace(layer, attention=attention)
        for attention in _attentions(config, model_type, plain)
        for layer in skeleton.layers(attention, skeleton.mlp(config), plain, [None], **changes)
    ]
    return skeleton.decoder(config, model_type, layers, plain)


def _attentions(config: Config, model_type: str, plain: Norm) -> list[Attention]:
    bias = config.take("attention_bias", bool, False)
    normed = None if model_type == "olmo" else HeadNorm(plain, over="all")
    clip = config.take("clip_qkv", float, None) if model_type == "olmo" else None
    base = skeleton.attention(config, rope=None, qkv_bias=bias, output_bias=bias, qk_norm=normed, clip=clip)
    if model_type != "olmo3":
        rope = read_rope(config, base.head_dim, skeleton.context_length(config))
        return [replace(base, rope=rope)] * config.positive("num_hidden_layers")
    return _olmo3(config, base)


def _olmo3(config: Config, base: Attention) -> list[Attention]:
    """Scaling applies to the full layers; sliding ones turn by the plain theta."""
    full = read_rope(config, base.head_dim, skeleton.context_length(config), 5e5, kind="full_attention")
    stated = config.take("rope_parameters", dict, {}).get("sliding_attention")
    theta = stated["rope_theta"] if stated else config.take("rope_theta", float, 5e5)
    sliding = fixed_rope(theta, base.head_dim)
    windows = skeleton.windows(config, skeleton.all_but_every(4), config.positive("sliding_window", 4096))
    return [replace(base, window=window, rope=sliding if window else full) for window in windows]
