"""`model_type: exaone4`: norms on outputs of branches, queries and keys; with windows, full layers have no rope."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Attention, Decoder, HeadNorm, Norm
from ..decoder.sources import LAYER, SKELETON, norm

WEIGHTS = {
    **SKELETON,
    **norm("post_attention", LAYER + "post_attention_layernorm"),
    **norm("post_mlp", LAYER + "post_feedforward_layernorm"),
}


def describe(config: Config) -> Decoder:
    """Norms are on the outputs of branches only."""
    plain = skeleton.rms(config, default=1e-5)
    changes = {"pre_attention": None, "pre_mlp": None, "post_attention": plain, "post_mlp": plain}
    layers = [
        layer
        for attention in attentions(config, plain)
        for layer in skeleton.layers(attention, skeleton.mlp(config), plain, [attention.window], **changes)
    ]
    return skeleton.decoder(config, "exaone4", layers, plain)


def attentions(config: Config, plain: Norm) -> list[Attention]:
    """Of each layer. `sliding_window_pattern` is a period, or a string such as LLLG (local, local, local, global)."""
    base = skeleton.attention(config, qk_norm=HeadNorm(plain))
    window = config.positive("sliding_window", None)
    pattern: object = config.take("sliding_window_pattern", object, None)
    period = len(pattern) if isinstance(pattern, str) else config.take("sliding_window_pattern", int, 4) or 1
    last = config.positive("num_hidden_layers") - 1
    windows = skeleton.windows(config, lambda i: window is not None and (i + 1) % period != 0 and i != last, window)
    return [replace(base, window=w, rope=None if window is not None and w is None else base.rope) for w in windows]
