"""Named recipes, and recipe files.

fast        seconds, no text: the best grid for each group of 32, the embedding in 8 bits
balanced    the default: GPTQ with everything, 5.0 bits per weight spent by measured sensitivity
small       the same at 4.6 bits
accurate    the same at 6.2 bits, enough for an embedding in 8 bits
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from runtime.bundle import json_codec
from runtime.bundle.bundle import Bundle, open_bundle
from runtime.errors import QuantizationError

from .algorithms.registry import CALIBRATED, DEFAULT, METHODS
from .costs.table import TARGETS, THIS_MACHINE, CostTable, read_costs
from .recipe import Recipe, TimeBudget, decode_recipe
from .storage.scheme import QuantConfig, Scheme

_READ_TOKENS = 16384  # of a file; text that the model writes itself takes longer
_RESIDUAL_SHARE = 0.03  # of weights.bin, as 32 inputs of each matrix take: KL fell by 33, 43, 49 % with 1, 3, 6 %
_EMBEDDING = QuantConfig(Scheme(8, 32, symmetric=True))
_FAST = Recipe(QuantConfig(Scheme(4, 32)), _EMBEDDING, method=DEFAULT)
_CAREFUL = Recipe(
    QuantConfig(Scheme(4, 32, scale_bits=8)),
    QuantConfig(Scheme(8, 32, symmetric=True, scale_bits=8)),
    method=CALIBRATED, permute=True, smoothing=True, polish=2, calibration_tokens=8192,
)  # fmt: skip
PRESETS = {
    "fast": _FAST,
    "balanced": replace(_CAREFUL, budget=5.0),
    "small": replace(_CAREFUL, budget=4.6),
    "accurate": replace(_CAREFUL, budget=6.2),
}
# Of the time of plain 4-bit groups of 32, with a target: the points of docs/quantize.md, "Count time, not bytes".
PRESET_TIMES = {"small": 0.87, "balanced": 0.93, "accurate": 1.02}


@dataclass(frozen=True)
class Storage:
    """How a user wants weights to be stored; None leaves it to the preset."""

    bits: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    embedding_bits: int | None = None
    residual_channels: int | Literal["auto"] | None = None

    @property
    def given(self) -> bool:
        """Whether anything is said at all."""
        return self != Storage()


def make_recipe(
    preset: str | None = None,
    method: str | None = None,
    budget: float | None = None,
    storage: Storage = Storage(),
    costs: str | CostTable | None = None,
    time: float | None = None,
    **others: Any,
) -> Recipe:
    """The recipe that a user's choices mean; `others` are further fields of Recipe, None where nothing is said.

    1. A preset is taken as it is; without one, a budget means "balanced" within that budget.
    2. Without both, weights are stored as `storage` says, by "search" unless another method is named; residual channels
       mean "gptq", which alone knows them.
    3. Without anything, "balanced" is meant.
    4. A target, or costs that were measured, make a preset, or `time`, count what a decode step takes there.

    Raises:
        QuantizationError: a value, or a combination, that is not supported.
    """
    if preset:
        base = PRESETS[preset]
    elif budget is not None or time is not None or not (method or storage.given):
        base = PRESETS["balanced"]
    else:
        base = _recipe_with(method or (CALIBRATED if storage.residual_channels else DEFAULT))
    if method not in (None, base.method):
        raise QuantizationError(f"preset {preset!r} uses the method {base.method!r}: leave out one of the two.")
    if storage.given and (budget or base.budget):
        raise QuantizationError("a budget chooses bits, groups and residual channels itself: leave those options out.")
    if costs is not None or time is not None:
        base = replace(base, time=_time_budget(preset, base, budget, costs, time), budget=None)
    try:
        chosen = {key: value for key, value in {"budget": budget, **others}.items() if value is not None}
        if chosen.get("calibration", "self") != "self":
            chosen = {"calibration_tokens": _READ_TOKENS} | chosen
        elif "kv" in chosen:  # text that the model writes itself takes long, whatever needs it
            chosen = {"calibration_tokens": _CAREFUL.calibration_tokens} | chosen
        return replace(_stored(base, storage), **chosen)
    except ValueError as error:
        raise QuantizationError(f"{error}.") from error


def require_effect(given: Mapping[str, Any], recipe: Recipe, *, gate: bool) -> None:
    """Every option about text changes something: there is text at all, and a seed is of text that the model writes.

    Args:
        given: options by parameter name, None where the user left them out.
        recipe: what they mean.
        gate: whether the result is measured on text.

    Raises:
        QuantizationError: an option that would be ignored.
    """
    names = [name for name in ("calibration", "calibration_tokens", "seed", "work") if given.get(name) is not None]
    if names and not (recipe.needs_text or recipe.kv or gate):
        raise QuantizationError(
            f"{_flag(names[0])} has no effect: method {recipe.method!r} needs no text. Leave it out, or name what "
            f"reads text: --method {CALIBRATED}, --budget, --preset balanced, --residual-channels, --kv or --fail-if."
        )
    require_own_text(given.get("seed"), recipe.calibration)


def require_own_text(seed: int | None, calibration: str) -> None:
    """Raise QuantizationError for a seed beside a text that is given: it is of text that the model writes."""
    if seed is not None and calibration != "self":
        raise QuantizationError("--seed has no effect: it is of text that the model writes. Leave out --calibration.")


def _time_budget(
    preset: str | None, base: Recipe, budget: float | None, costs: str | CostTable | None, time: float | None
) -> TimeBudget:
    """What `--for` and `--time` mean."""
    if budget is not None:
        raise QuantizationError("budget counts bytes, and time what a decode step takes: leave out one of the two.")
    if costs is None:
        raise QuantizationError(f"time: on which target? --for {'|'.join([*TARGETS, THIS_MACHINE])}, or a file.")
    if base.budget is None:
        raise QuantizationError("for: nothing is chosen by cost here. Use it with --time, or a preset but fast.")
    table = costs if isinstance(costs, CostTable) else read_costs(costs)
    ratio = time if time is not None else PRESET_TIMES[preset or "balanced"]
    try:
        return TimeBudget(ratio, table.target, None if costs in TARGETS else table)
    except ValueError as error:
        raise QuantizationError(f"{error}.") from error


def _recipe_with(method: str) -> Recipe:
    return replace(_CAREFUL if METHODS[method].needs_text else _FAST, method=method)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_recipe(path: Path) -> Recipe:
    """A recipe from a TOML file, in the words of the manifest's `quantization.recipe`, or that of a quantized bundle.

    Raises:
        QuantizationError: the file or bundle cannot be read, or holds no recipe.
    """
    if path.is_dir():
        return _recipe_of(open_bundle(path))
    try:
        return decode_recipe(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, json_codec.StrictJsonError) as error:  # not UTF-8, not TOML, not a recipe
        raise QuantizationError(f"{path}: not a recipe ({error}).") from error


def _recipe_of(bundle: Bundle) -> Recipe:
    quantization = bundle.manifest.quantization
    if quantization is None:
        raise QuantizationError(f"{bundle.folder} is not quantized: it holds no recipe.")
    try:
        return decode_recipe(quantization.recipe)
    except (ValueError, json_codec.StrictJsonError) as error:
        raise QuantizationError(f"{bundle.folder}: its weights were not chosen by a recipe ({error}).") from error


def _stored(base: Recipe, storage: Storage) -> Recipe:
    old, careful = base.linear.scheme, base.needs_text
    bits = old.bits if storage.bits is None else storage.bits
    linear = Scheme(
        bits,
        old.group_size if storage.group_size is None else storage.group_size,
        (careful and bits == 8) if storage.symmetric is None else storage.symmetric,  # zero points buy 8 bits nothing
        old.scale_bits,
    )
    embedding = replace(base.embedding.scheme, bits=storage.embedding_bits or base.embedding.scheme.bits)
    residuals = (
        storage.residual_channels if isinstance(storage.residual_channels, int) else base.linear.residual_channels
    )
    share = _RESIDUAL_SHARE if storage.residual_channels == "auto" else None
    return replace(
        base,
        linear=QuantConfig(linear, residuals),
        embedding=QuantConfig(embedding, base.embedding.residual_channels),
        residual_share=share,
    )
