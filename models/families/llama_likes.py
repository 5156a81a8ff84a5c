"""Llama's skeleton with other defaults: seed_oss, internlm3, ernie4_5, arcee, helium."""

from dataclasses import dataclass

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


@dataclass(frozen=True)
class _Defaults:
    """What a class assumes where config.json is silent, and the keys of its biases (None: no bias)."""

    context: int
    epsilon: float
    qkv_bias: str | None = None
    output_bias: str | None = None
    mlp_bias: str | None = None
    bias: bool = False
    head_dim: int | None = None
    theta: float = 10000.0
    interleaved: bool = False
    tied: bool = False
    activation: str = "silu"
    gated: bool = True


_FAMILIES = {
    "seed_oss": _Defaults(524288, 1e-6, "attention_bias", "attention_out_bias", "mlp_bias", head_dim=128),
    "internlm3": _Defaults(32768, 1e-5, "attention_bias", "attention_bias", "mlp_bias", head_dim=128),
    "ernie4_5": _Defaults(
        131072, 1e-5, "use_bias", "use_bias", "use_bias", head_dim=128, theta=5e5, interleaved=True, tied=True
    ),
    "arcee": _Defaults(4096, 1e-5, "attention_bias", "attention_bias", "mlp_bias", activation="relu2", gated=False),
    "helium": _Defaults(4096, 1e-8, "attention_bias", None, "mlp_bias", head_dim=128, theta=1e5, interleaved=True),
}


def describe(config: Config) -> Decoder:
    """The decoder by the family's row of the table."""
    model_type = config.take("model_type", str)
    family = _FAMILIES[model_type]

    def has(key: str | None) -> bool:
        default = model_type == "seed_oss" and key == "attention_bias"
        return key is not None and config.take(key, bool, default)

    attention = skeleton.attention(
        config,
        head_dim=family.head_dim,
        theta=family.theta,
        interleaved=family.interleaved,
        context=family.context,
        qkv_bias=has(family.qkv_bias),
        output_bias=has(family.output_bias),
    )
    mlp = skeleton.mlp(config, family.activation, bias=has(family.mlp_bias), gated=family.gated)
    norm = skeleton.rms(config, default=family.epsilon)
    layers = skeleton.layers(attention, mlp, norm, skeleton.windows(config, skeleton.never, None))
    return skeleton.decoder(config, model_type, layers, norm, tied=family.tied, context=family.context)
