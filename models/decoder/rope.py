"""Rotary embeddings: from config keys to frequencies.

Formulas: `transformers.modeling_rope_utils`; llama3 scaling from the Llama 3.1 release; YaRN from Peng et al. 2023.
Arithmetic is float32 where the reference's is, so that tables agree at long positions too.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import CheckpointError, UnsupportedError

from .config import Config
from .description import Rope

Floats = npt.NDArray[np.float32]


_WIDEST = 1 << 16


def read_rope(
    config: Config,
    head_dim: int,
    context_length: int,
    theta: float = 10000.0,
    partial: float = 1.0,
    kind: str = "",
    *,
    whole: bool = False,
) -> Rope:
    """The rope of a config in either spelling: `rope_parameters`, or `rope_theta` with `rope_scaling`.

    Args:
        config: where the keys are.
        head_dim: D; a `partial_rotary_factor` of it rotates.
        context_length: the largest number of positions.
        theta: the family's default base.
        partial: the family's default share of D.
        kind: "full_attention" or "sliding_attention" where the config may have one rope for each.
        whole: all of D rotates, whatever the config says of another size.
    """
    settings = _settings(config, kind) | {"context_length": context_length}
    settings.setdefault("rope_theta", theta)
    original = config.positive("original_max_position_embeddings", None)
    settings.setdefault("original_max_position_embeddings", original or context_length)
    partial = config.take("partial_rotary_factor", float, settings.get("partial_rotary_factor", partial))
    partial = 1.0 if whole else partial
    # A proportional rope has frequencies for the whole head, and leaves some of them at 0.
    width = head_dim if settings.get("rope_type") == "proportional" else int(head_dim * partial)
    settings["partial_rotary_factor"] = partial
    try:
        return _scaled(config, settings, width)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise CheckpointError(
            f"{config.where}: rope settings {settings!r} are incomplete or wrong: {error!r}."
        ) from error


def fixed_rope(theta: float, width: int, interleaved: bool = False) -> Rope:
    """An unscaled rope of `width` rotating channels."""
    return Rope(tuple(map(float, inverse_frequencies(theta, width))), interleaved=interleaved)


def _settings(config: Config, kind: str) -> dict[str, Any]:
    theta = config.take("rope_theta", float, None)
    old, new = config.take("rope_scaling", dict, {}), config.take("rope_parameters", dict, {})
    settings = {"rope_theta": theta} if theta is not None else {}
    for part in (old, new):
        settings |= part[kind] if isinstance(part.get(kind), dict) else part
    return settings


def _scaled(config: Config, settings: dict[str, Any], width: int) -> Rope:
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in _KINDS:
        raise UnsupportedError(f"{config.where}: rope_type {kind!r} is not supported; supported: {', '.join(_KINDS)}.")
    for key in ("rope_theta", "factor", "attention_factor"):
        value = settings.get(key)
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise CheckpointError(f"{config.where}: {key} of the rotary positions is {value!r}; it must be above 0.")
    base = inverse_frequencies(settings["rope_theta"], width)
    frequencies, factor = _KINDS[kind](base, settings)
    if kind not in _SWITCHING:
        return Rope(tuple(map(float, frequencies)), factor)
    long = base / np.array(settings["long_factor"], np.float32)
    switch = int(settings["original_max_position_embeddings"])
    return Rope(tuple(map(float, frequencies)), factor, switch=switch, long_inverse_frequencies=tuple(map(float, long)))


def inverse_frequencies(theta: float, width: int) -> Floats:
    """[width / 2]: theta ** (-2i / width), in float32 as transformers computes it.

    Raises:
        CheckpointError: no head is as wide as this; the frequencies alone would fill the memory.
    """
    if width > _WIDEST:
        raise CheckpointError(f"a head of {width} rotating channels cannot be; at most {_WIDEST} are supported.")
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return (np.float32(1.0) / np.float32(theta) ** exponent).astype(np.float32)


def _default(base: Floats, _settings: Mapping[str, Any]) -> tuple[Floats, float]:
    return base, 1.0


def _linear(base: Floats, settings: Mapping[str, Any]) -> tuple[Floats, float]:
    return base / np.float32(settings["factor"]), 1.0


def _dynamic(base: Floats, settings: Mapping[str, Any]) -> tuple[Floats, float]:
    """The default up to the context length, which is all that a bundle has; `alpha` (Hunyuan) stretches theta."""
    alpha, width = settings.get("alpha"), 2 * base.size
    if not alpha:
        return base, 1.0
    return inverse_frequencies(settings["rope_theta"] * math.pow(float(alpha), width / (width - 2)), width), 1.0


def _longrope(base: Floats, settings: Mapping[str, Any]) -> tuple[Floats, float]:
    original = float(settings["original_max_position_embeddings"])
    factor = float(settings.get("factor") or settings["context_length"] / original)
    default = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    attention = settings.get("attention_factor")
    short = np.array(settings["short_factor"], np.float32)
    return base / short, default if attention is None else float(attention)


def _proportional(base: Floats, settings: Mapping[str, Any]) -> tuple[Floats, float]:
    turning = int(settings["partial_rotary_factor"] * base.size)
    still = np.zeros(base.size - turning, np.float32)
    return np.concatenate([base[:turning] / np.float32(settings.get("factor") or 1), still]), 1.0


def _factors(base: Floats, settings: Mapping[str, Any]) -> tuple[Floats, float]:
    factors = np.array(settings["factors"], np.float32)
    if factors.shape != base.shape:
        raise ValueError(f"{factors.size} factors for {base.size} frequencies")
    return base / factors, 1.0


def _llama3(base: Floats, settings: Mapping[str, Any]) -> tuple[Floats, float]:
    factor = np.float32(settings["factor"])
    low, high = float(settings["low_freq_factor"]), float(settings["high_freq_factor"])
    original = float(settings["original_max_position_embeddings"])
    wavelength = np.float32(2 * math.pi) / base
    smooth = ((original / wavelength - low) / (high - low)).astype(np.float32)
    between = (1 - smooth) * base / factor + smooth * base
    scaled = np.where(wavelength > original / low, base / factor, base)
    medium = (wavelength <= original / low) & (wavelength >= original / high)
    return np.where(medium, between, scaled).astype(np.float32), 1.0


def _yarn(base: Floats, settings: Mapping[str, Any]) -> tuple[Floats, float]:
    width, factor = 2 * base.size, float(settings["factor"])
    original = float(settings["original_max_position_embeddings"])

    def dimension(rotations: float) -> float:
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(settings["rope_theta"]))

    low, high = dimension(settings.get("beta_fast") or 32), dimension(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(base.size, dtype=np.float32) - low) / (high - low + 0.001 * (low == high)), 0, 1)
    frequencies = base / np.float32(factor) * ramp + base * (1 - ramp)
    return frequencies.astype(np.float32), _yarn_attention_factor(settings, factor)


def _yarn_attention_factor(settings: Mapping[str, Any], factor: float) -> float:
    def scale(multiplier: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

    if settings.get("attention_factor") is not None:
        return float(settings["attention_factor"])
    mscale, mscale_all = settings.get("mscale"), settings.get("mscale_all_dim")
    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1)


_KINDS: dict[str, Callable[[Floats, Mapping[str, Any]], tuple[Floats, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "longrope": _longrope,
    "su": _longrope,  # as the first Phi-3 configs spelled it
    "mrope": _default,  # three axes of a multimodal model, all equal for text
    "proportional": _proportional,  # Gemma 4's full layers
    "factors": _factors,  # explicit divisors, as GGUF files carry them
}
_SWITCHING = ("longrope", "su")
