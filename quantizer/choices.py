"""What a user may say about a run, from the command line or in Python, and the recipe that it means."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict

from runtime.errors import QuantizationError

from .costs.table import THIS_MACHINE, CostTable
from .presets import Storage, make_recipe, read_recipe
from .progress import Progress, silent
from .recipe import Recipe

_STORAGE = [field.name for field in fields(Storage)]
_EARLIER = {"table_bits": "embedding_bits", "outliers": "residual_channels"}


class Choices(TypedDict, total=False):
    """The options of `onnxlm quantize` that a recipe is made of; None, or nothing, leaves one to the preset.

    `costs` is `--for`: a target, "this-machine", or a file of `onnxlm bench --kernels -o FILE`. `table_bits` and
    `outliers` are earlier names of `embedding_bits` and `residual_channels`.
    """

    preset: Literal["fast", "balanced", "small", "accurate"] | None
    method: str | None
    bits: Literal[4, 8] | None
    group_size: int | None
    symmetric: bool | None
    embedding_bits: Literal[4, 8] | None
    residual_channels: int | Literal["auto"] | None
    budget: float | None
    costs: str | PathLike[str] | None
    time: float | None
    kv: Literal["int8", "int4"] | None
    calibration: str | PathLike[str] | None
    calibration_tokens: int | None
    seed: int | None
    exclude: Sequence[str]
    table_bits: Literal[4, 8] | None
    outliers: int | Literal["auto"] | None


def recipe_of(
    recipe: Recipe | str | PathLike[str] | None, choices: Mapping[str, Any], progress: Progress = silent
) -> Recipe:
    """The recipe that is given, or what the choices mean.

    Args:
        recipe: a recipe, a TOML file, or a bundle whose recipe is used again; then nothing else may be chosen.
        choices: see `Choices`.
        progress: is told if this machine is measured.

    Raises:
        QuantizationError: an unknown choice, choices that contradict each other, an unreadable recipe.
    """
    said = _said(choices)
    if recipe is None:
        storage = Storage(**{name: said.pop(name) for name in _STORAGE if name in said})
        costs = said.pop("costs", None)
        return make_recipe(storage=storage, costs=None if costs is None else _costs(costs, progress), **said)
    if said:
        raise QuantizationError("recipe says everything: leave out the other options that it holds.")
    return recipe if isinstance(recipe, Recipe) else read_recipe(Path(recipe))


def _said(choices: Mapping[str, Any]) -> dict[str, Any]:
    """What was chosen, by the names of today."""
    said = {key: value for key, value in choices.items() if value is not None and value not in ((), [])}
    for earlier, name in _EARLIER.items():
        if earlier in said and name in said:
            raise QuantizationError(f"{earlier} is the earlier name of {name}: leave out one of the two.")
    if unknown := sorted(said.keys() - Choices.__annotations__.keys()):
        raise QuantizationError(f"{unknown[0]}: no such choice; there are {', '.join(Choices.__annotations__)}.")
    named = {_EARLIER.get(key, key): value for key, value in said.items()}
    made = {"calibration": str, "exclude": tuple}
    return {key: made[key](value) if key in made else value for key, value in named.items()}


def _costs(name: str | PathLike[str], progress: Progress) -> str | CostTable:
    if str(name) != THIS_MACHINE:
        return str(name)
    from .costs.measure import measure_kernels

    return measure_kernels(progress)
