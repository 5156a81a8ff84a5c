"""The initializers of the graphs, matched with the tensors of the checkpoint before any weight is read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.errors import CheckpointError, OptionError

from .stacks import slices

if TYPE_CHECKING:
    import onnx_ir as ir

    from models.blocks.parameter import Plan
    from models.decoder.description import Decoder
    from models.decoder.sources import Table

    from ..checkpoint import TensorSource

WEIGHTS_FILE = "weights.bin"


@dataclass(frozen=True)
class Weight:
    """One initializer to be: its graph shape and type, its plan, and the checkpoint tensors it is stacked from.

    `order`: row j of the stack is row order[j] as stored; `stored` and `each_head` as in models.decoder.sources.Source.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any  # onnx_ir.DataType
    plan: "Plan"
    sources: tuple["TensorSource", ...]
    stored: str = "out_in"
    order: npt.NDArray[np.int64] | None = None
    each_head: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes in weights.bin."""
        return int(np.prod(self.shape)) * int(self.dtype.itemsize)


def plan_weights(
    graph: "ir.Graph", decoder: "Decoder", table: "Table", tensors: Mapping[str, "TensorSource"]
) -> list[Weight]:
    """Match the graph's initializers with the checkpoint, before any weight is read.

    Args:
        graph: a graph whose initializers have plans and no data.
        decoder: what the graph was built from.
        table: the family's table from initializers to checkpoint tensors.
        tensors: the checkpoint's.

    Raises:
        CheckpointError: a tensor is missing, has another shape than the config says, or is used by nobody.
    """
    planned = [value for value in graph.initializers.values() if value.const_value is None]
    weights = [_plan(value, decoder, table, tensors) for value in planned]
    for weight in weights:
        _check_shapes(weight)
    _check_all_used(weights, tensors, table)
    return weights


def without_ignored(tensors: Mapping[str, "TensorSource"], patterns: Sequence[str]) -> Mapping[str, "TensorSource"]:
    """The tensors that no pattern names.

    Raises:
        OptionError: a pattern that names none.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in tensors):
            raise OptionError(f"ignore_tensors: the checkpoint has no tensor {pattern!r}.")
    return {name: it for name, it in tensors.items() if not any(fnmatchcase(name, pattern) for pattern in patterns)}


def _plan(value: "ir.Value", decoder: "Decoder", table: "Table", tensors: Mapping[str, "TensorSource"]) -> Weight:
    from models.blocks.parameter import PLAN

    assert value.name is not None
    assert value.shape is not None
    plan: Plan = value.meta[PLAN]
    weight = Weight(value.name, tuple(int(size) for size in value.shape.numpy()), value.dtype, plan, ())
    if plan.computed is not None:
        return weight
    numbers = [part for part in value.name.split(".") if part.isdecimal()]
    pattern = ".".join("{i}" if part.isdecimal() else part for part in value.name.split("."))
    source = table[pattern]
    names = _names(source.tensors, numbers, weight.shape)
    if source.otherwise and not any(name in tensors for name in names):
        names = _names(source.otherwise, numbers, weight.shape)
    if source.each_head:
        names = [names[0].replace("{head}", str(head)) for head in range(weight.shape[0])]
    missing = [name for name in names if name not in tensors]
    if missing:
        raise CheckpointError(
            f"the checkpoint has no tensor {missing[0]!r}, which {value.name} is made of. "
            f"A shard may be missing, or config.json may describe another model."
        )
    order = source.order(decoder.layers[int(numbers[0])]) if source.order else None
    return replace(
        weight,
        sources=tuple(tensors[name] for name in names),
        stored=source.stored,
        order=order,
        each_head=source.each_head,
    )


def _names(patterns: tuple[str, ...], numbers: list[str], shape: tuple[int, ...]) -> list[str]:
    """Of this layer's tensors; one expert's behind the other's where each has its own."""
    names = [name.replace("{i}", numbers[0]) if numbers else name for name in patterns]
    if any("{e}" in name for name in names):
        return [name.replace("{e}", str(expert)) for expert in range(shape[0]) for name in names]
    return names


def _check_shapes(weight: Weight) -> None:
    if weight.plan.computed is not None:
        return
    if weight.plan.stacked:
        for part in slices(weight):
            _check_shapes(part)
        return
    stacked = _unplanned_shape(weight)
    shapes = [as_out_in(weight, source.shape) for source in weight.sources]
    rows = sum(shape[0] if shape else 0 for shape in shapes)
    if rows != stacked[0] or any(len(shape) != len(stacked) or shape[1:] != stacked[1:] for shape in shapes):
        found = ", ".join(f"{source.name} {list(source.shape)}" for source in weight.sources)
        raise CheckpointError(
            f"{weight.name} needs {list(stacked)} in all, by config.json, but the checkpoint has {found}."
        )


def as_out_in(weight: Weight, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a stored tensor in the orientation of the others: outputs first, single rows as vectors."""
    if weight.each_head:
        return (1, *shape)
    if weight.stored == "row":
        return shape[1:] if shape[:1] == (1,) else shape
    return shape[::-1] if weight.stored == "in_out" and len(shape) == 2 else shape


def _unplanned_shape(weight: Weight) -> tuple[int, ...]:
    plan, shape = weight.plan, weight.shape
    stacked = shape[::-1] if plan.transposed and len(shape) == 2 else shape
    rows = stacked[0] if plan.rows is None else len(plan.rows)
    columns = stacked[1:] if plan.columns is None else (len(plan.columns),)
    return (rows, *columns)


def _check_all_used(weights: list[Weight], tensors: Mapping[str, "TensorSource"], table: "Table") -> None:
    from models.decoder.sources import UNUSED

    used = {source.name for weight in weights for source in weight.sources}
    known = table[UNUSED].tensors if UNUSED in table else ()
    patterns = [re.escape(name).replace(re.escape("{i}"), r"\d+") for name in known]
    unused = sorted(
        name
        for name, source in tensors.items()
        if not {source.name, name} & used and not any(re.fullmatch(pattern, name) for pattern in patterns)
    )
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise CheckpointError(
            f"the checkpoint's tensor {unused[0]!r}{more} would not be used: the export would compute something else "
            f"than the checkpoint. config.json may describe another model; pass --ignore-tensor {unused[0]!r} if it "
            "does not matter."
        )
