"""From checkpoint tensors to weights.bin, one tensor in memory at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.errors import CheckpointError

if TYPE_CHECKING:
    import onnx_ir as ir

    from models.blocks.parameter import Plan

    from .checkpoint import TensorSource

WEIGHTS_FILE = "weights.bin"
ALIGNMENT = 4096  # a page: ONNX Runtime maps each tensor without copying
_TRANSPOSE_BLOCK = 512


@dataclass(frozen=True)
class Weight:
    """One initializer to be: its graph shape and type, its plan, and the checkpoint tensors it is stacked from."""

    name: str
    shape: tuple[int, ...]
    dtype: Any  # onnx_ir.DataType
    plan: "Plan"
    sources: tuple["TensorSource", ...]

    @property
    def nbytes(self) -> int:
        """Bytes in weights.bin."""
        return int(np.prod(self.shape)) * int(self.dtype.itemsize)


@dataclass(frozen=True)
class Place:
    """Where one initializer lies in weights.bin, in bytes."""

    offset: int
    length: int


def plan_weights(
    graph: "ir.Graph", table: Mapping[str, tuple[str, ...]], tensors: Mapping[str, "TensorSource"]
) -> list[Weight]:
    """Match the graph's initializers with the checkpoint, before any weight is read.

    Args:
        graph: a graph whose initializers have plans and no data.
        table: the family's table from initializers to checkpoint tensors.
        tensors: the checkpoint's.

    Raises:
        CheckpointError: a tensor is missing, has another shape than the config says, or is used by nobody.
    """
    from models.blocks.parameter import PLAN

    weights = []
    for value in graph.initializers.values():
        if value.const_value is None and value.name is not None and value.shape is not None:
            plan = value.meta[PLAN]
            sources = () if plan.computed is not None else _find(value.name, table, tensors)
            shape = tuple(int(size) for size in value.shape.numpy())
            weights.append(Weight(value.name, shape, value.dtype, plan, sources))
    for weight in weights:
        _check_shapes(weight)
    _check_all_used(weights, tensors)
    return weights


def write_weights(path: Path, weights: list[Weight], progress: Callable[[int], None]) -> dict[str, Place]:
    """Write the tensors one behind the other, each at a multiple of 4,096; `progress` is told the bytes of each."""
    places = {}
    with path.open("wb") as file:
        for weight in weights:
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            array = _load(weight)
            places[weight.name] = Place(file.tell(), array.nbytes)
            file.write(array.reshape(-1).view(np.uint8).data)
            del array
            progress(weight.nbytes)
    return places


def attach_weights(graph: "ir.Graph", places: Mapping[str, Place], folder: Path) -> None:
    """Make the graph's initializers refer to their places in weights.bin."""
    import onnx_ir as ir

    for name, place in places.items():
        value = graph.initializers.get(name)
        if value is not None and value.shape is not None and value.dtype is not None:
            value.const_value = ir.ExternalTensor(
                WEIGHTS_FILE, place.offset, place.length, value.dtype, shape=value.shape, name=name, base_dir=folder
            )


def _find(
    name: str, table: Mapping[str, tuple[str, ...]], tensors: Mapping[str, "TensorSource"]
) -> tuple["TensorSource", ...]:
    parts = name.split(".")
    layer = next((part for part in parts if part.isdecimal()), "")
    pattern = ".".join("{i}" if part.isdecimal() else part for part in parts)
    wanted = [source.replace("{i}", layer) for source in table[pattern]]
    missing = [source for source in wanted if source not in tensors]
    if missing:
        raise CheckpointError(
            f"the checkpoint has no tensor {missing[0]!r}, which {name} is made of. "
            f"A shard may be missing, or config.json may describe another model."
        )
    return tuple(tensors[source] for source in wanted)


def _check_shapes(weight: Weight) -> None:
    if weight.plan.computed is not None:
        return
    stacked = _unplanned_shape(weight)
    rows = sum(source.shape[0] if source.shape else 0 for source in weight.sources)
    fits = rows == stacked[0] and all(
        len(s.shape) == len(stacked) and s.shape[1:] == stacked[1:] for s in weight.sources
    )
    if not fits:
        found = ", ".join(f"{source.name} {list(source.shape)}" for source in weight.sources)
        raise CheckpointError(
            f"{weight.name} needs {list(stacked)} in all, by config.json, but the checkpoint has {found}."
        )


def _unplanned_shape(weight: Weight) -> tuple[int, ...]:
    plan, shape = weight.plan, weight.shape
    stacked = shape[::-1] if plan.transposed and len(shape) == 2 else shape
    rows = stacked[0] if plan.rows is None else len(plan.rows)
    columns = stacked[1:] if plan.columns is None else (len(plan.columns),)
    return (rows, *columns)


def _check_all_used(weights: list[Weight], tensors: Mapping[str, "TensorSource"]) -> None:
    used = {source.name for weight in weights for source in weight.sources}
    unused = sorted(name for name, source in tensors.items() if source.name not in used and name not in used)
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise CheckpointError(
            f"the checkpoint's tensor {unused[0]!r}{more} would not be used: the export would compute something else "
            f"than the checkpoint. config.json may describe another model."
        )


def _load(weight: Weight) -> npt.NDArray[Any]:
    plan = weight.plan
    if plan.computed is not None:
        return _cast(plan.computed, weight)
    wide = weight.shape[::-1] if plan.transposed and len(weight.shape) == 2 else weight.shape
    result = np.zeros(weight.shape, _numpy_type(weight))
    canvas = result.T if plan.transposed else result  # a view in the checkpoint's orientation
    first = 0
    for source in weight.sources:
        values = _cast(source.read(), weight)
        _place(canvas, values, first, plan)
        first += len(values)
    assert canvas.shape == wide
    return result


def _place(canvas: npt.NDArray[Any], values: npt.NDArray[Any], first: int, plan: "Plan") -> None:
    """Copy rows `first…` block by block: a whole transposed copy would miss the cache at every element."""
    for start in range(0, len(values), _TRANSPOSE_BLOCK):
        block = values[start : start + _TRANSPOSE_BLOCK]
        span = slice(first + start, first + start + len(block))
        rows = span if plan.rows is None else plan.rows[span]
        if plan.columns is None:
            canvas[rows] = block
        else:
            canvas[np.arange(len(canvas))[rows][:, None], plan.columns] = block


def _numpy_type(weight: Weight) -> Any:
    return weight.dtype.numpy()


def _cast(values: npt.NDArray[np.float32], weight: Weight) -> npt.NDArray[Any]:
    kind = _numpy_type(weight)
    if kind == np.float32:
        return values
    largest = float(np.abs(values).max(initial=0))
    if kind == np.float16 and largest > np.finfo(np.float16).max:
        raise CheckpointError(f"{weight.name} holds {largest:g}, which float16 cannot: export with --dtype bfloat16.")
    return values.astype(kind)
