"""Rotary embeddings: from config keys to frequencies, from frequencies to cos/sin tables.

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


def read_rope(config: Config, head_dim: int, context_length: int, default_theta: float = 10000.0) -> Rope:
    """The rope of a config in either spelling: `rope_parameters`, or `rope_theta` with `rope_scaling`."""
    theta = config.take("rope_theta", float, default_theta)
    old, new = config.take("rope_scaling", dict, {}), config.take("rope_parameters", dict, {})
    settings: dict[str, Any] = {"rope_theta": theta} | old | new
    partial = config.take("partial_rotary_factor", float, settings.get("partial_rotary_factor", 1.0))
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in _KINDS:
        raise UnsupportedError(f"{config.where}: rope_type {kind!r} is not supported; supported: {', '.join(_KINDS)}.")
    settings.setdefault("original_max_position_embeddings", context_length)
    width = int(head_dim * partial)
    try:
        frequencies, factor = _KINDS[kind](_base(settings["rope_theta"], width), settings)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"{config.where}: rope settings {settings!r} are incomplete or wrong: {error!r}."
        ) from error
    return Rope(tuple(map(float, frequencies)), factor)


def rope_tables(rope: Rope, positions: int) -> tuple[Floats, Floats]:
    """cos and sin, each `[positions, r/2]` float32."""
    angles = np.outer(np.arange(positions, dtype=np.float32), np.array(rope.inverse_frequencies, np.float32))
    wide = angles.astype(np.float64)
    return (np.cos(wide) * rope.factor).astype(np.float32), (np.sin(wide) * rope.factor).astype(np.float32)


def _base(theta: float, width: int) -> Floats:
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return (np.float32(1.0) / np.float32(theta) ** exponent).astype(np.float32)


def _default(base: Floats, _settings: Mapping[str, Any]) -> tuple[Floats, float]:
    return base, 1.0


def _linear(base: Floats, settings: Mapping[str, Any]) -> tuple[Floats, float]:
    return base / np.float32(settings["factor"]), 1.0


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
    "factors": _factors,  # explicit divisors, as GGUF files carry them
}
