"""`model_type: exaone4`: norms on outputs of branches, queries and keys; with windows, full layers have no rope."""

from dataclasses import replace

from . import skeleton
from .config import Config
from .description import Decoder, HeadNorm
from .sources import LAYER, SKELETON, norm

WEIGHTS = {
    **SKELETON,
    **norm("post_attention", LAYER + "post_attention_layernorm"),
    **norm("post_mlp", LAYER + "post_feedforward_layernorm"),
}


def describe(config: Config) -> Decoder:
    """`sliding_window_pattern` is a period, or a string such as LLLG (local, local, local, global)."""
    plain = skeleton.rms(config, default=1e-5)
    base = skeleton.attention(config, qk_norm=HeadNorm(plain))
    window = config.positive("sliding_window", None)
    pattern: object = config.take("sliding_window_pattern", object, None)
    period = len(pattern) if isinstance(pattern, str) else config.take("sliding_window_pattern", int, 4) or 1
    last = config.positive("num_hidden_layers") - 1
    windows = skeleton.windows(config, lambda i: window is not None and (i + 1) % period != 0 and i != last, window)
    changes = {"pre_attention": None, "pre_mlp": None, "post_attention": plain, "post_mlp": plain}
    layers = [
        replace(layer, attention=replace(base, window=w, rope=None if window is not None and w is None else base.rope))
        for w in windows
        for layer in skeleton.layers(base, skeleton.mlp(config), plain, [w], **changes)
    ]
    return skeleton.decoder(config, "exaone4", layers, plain)
