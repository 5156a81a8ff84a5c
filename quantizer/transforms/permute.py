"""Order the inputs of every matrix by how much they matter, at no cost when it runs: neighbours absorb the order.

GPTQ rounds inputs in order, and the last ones carry what the first ones lost; "act-order" in its papers. Here the
orders are absorbed: hidden channels by everything on the residual stream, value channels by qkv and o, inner channels
by gate_up and down. Query and key rows stay: rotary embeddings pair them.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..storage.matrix import Floats
from .discover import Attention, Gate, Structure
from .equivalent import Axis, EquivalentTransforms, Order
from .residual_stream import Stream


def plan_permutations(
    structure: Structure, diagonal: Callable[[str], Floats | None], changes: EquivalentTransforms
) -> None:
    """Add the reorderings of a whole model to `changes`.

    Args:
        structure: what may absorb what.
        diagonal: weight name → mean squares of its inputs `[K]`; None for one that nothing is known of.
        changes: is added to.
    """
    if structure.stream:
        _permute_stream(structure.stream, diagonal, changes)
    for attention in structure.attentions:
        importance = diagonal(attention.o)
        if importance is not None:
            _permute_values(attention, importance, changes)
    for gate in structure.gates:
        importance = diagonal(gate.down)
        if importance is not None:
            _permute_inner(gate, descending(importance), changes)


def descending(importance: npt.NDArray[np.floating]) -> Order:
    """Positions from the most to the least important; ties keep their order."""
    return np.argsort(-importance, kind="stable")


def _permute_stream(stream: Stream, diagonal: Callable[[str], Floats | None], changes: EquivalentTransforms) -> None:
    """One order for all: the sum over the matrices of their inputs' shares."""
    total = np.zeros(stream.size)
    for name in stream.inputs:
        squares = diagonal(name)
        if squares is not None and squares.mean() > 0:
            total += squares / squares.mean()
    axis = Axis(order=descending(total))
    for name in stream.inputs:
        changes.change_inputs(name, axis)
    for name in stream.outputs:
        changes.change_outputs(name, axis)


def _permute_values(attention: Attention, importance: Floats, changes: EquivalentTransforms) -> None:
    """Within each key-value head; the query heads that share it share the order."""
    size, shared = attention.head_dim, attention.heads // attention.kv_heads
    per_head = importance.reshape(attention.kv_heads, shared, size).sum(axis=1)
    orders = [descending(channels) for channels in per_head]
    first_value = (attention.heads + attention.kv_heads) * size
    values = [first_value + head * size + order for head, order in enumerate(orders)]
    rows = Axis(order=np.concatenate([np.arange(first_value), *values]))
    changes.change_outputs(attention.qkv, rows)
    if attention.qkv_bias is not None:
        changes.change_outputs(attention.qkv_bias, rows)
    columns = [head * size + orders[head // shared] for head in range(attention.heads)]
    changes.change_inputs(attention.o, Axis(order=np.concatenate(columns)))


def _permute_inner(gate: Gate, order: Order, changes: EquivalentTransforms) -> None:
    rows = Axis(order=np.concatenate([order, len(order) + order]))
    changes.change_outputs(gate.gate_up, rows)
    changes.change_outputs(gate.gate_up_bias, rows)
    changes.change_inputs(gate.down, Axis(order=order))
