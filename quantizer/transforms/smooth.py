"""Smoothing: inputs that matter are made larger before rounding, and what feeds them smaller. Exact.

After AWQ (Lin et al., 2023, arXiv:2306.00978). The paper searches the exponent of each matrix; here it is 0.25 for 4
bits and 0.5 for 8, which were best on SmolLM2-135M off its grid: KL 15 % lower than without, in 4 bits.
"""

from collections.abc import Callable

import numpy as np

from ..storage.matrix import Floats
from .discover import Attention, Gate, Norm, Structure
from .equivalent import Axis, EquivalentTransforms, Scale

_DAMPING = 1e-3


Diagonal = Callable[[str], Floats | None]


def plan_smoothing(
    structure: Structure, diagonal: Diagonal, exponent: Callable[[str], float], changes: EquivalentTransforms
) -> None:
    """Add the smoothing of a whole model to `changes`.

    Args:
        structure: what may absorb what.
        diagonal: weight name → mean squares of its inputs `[K]`, in the order that `changes` gives them; None where
            nothing is known.
        exponent: weight name → how far its inputs are smoothed; 0 leaves them alone.
        changes: is added to.
    """
    for gate in structure.gates:
        squares = diagonal(gate.down)
        if squares is not None:
            scale_gate(changes, gate, 1 / smoothing_scale(squares, exponent(gate.down)))
    for attention in structure.attentions:
        squares = diagonal(attention.o)
        if squares is not None:
            shared = average_over_heads(squares, attention)
            scale_values(changes, attention, 1 / smoothing_scale(shared, exponent(attention.o)))
    for norm in structure.norms:
        squares = diagonal(norm.readers[0])
        if squares is not None:
            scale_norm(changes, norm, smoothing_scale(squares, exponent(norm.readers[0])))


def smoothing_scale(diagonal: Floats, exponent: float) -> Scale:
    """How much larger each input `[K]` is made: its root mean square to the power `exponent`, geometric mean 1."""
    squares = diagonal.astype(np.float64)
    squares = squares + _DAMPING * squares.mean()
    if not squares.all():
        return np.ones_like(squares)
    logs = 0.5 * exponent * np.log(squares)
    scale: Scale = np.exp(logs - logs.mean())
    return scale


def scale_norm(changes: EquivalentTransforms, norm: Norm, scale: Scale) -> None:
    """Readers' inputs times `scale` `[H]`, gain and bias divided by it."""
    for vector in norm.vectors:
        changes.change_outputs(vector, Axis(scale=1 / scale))
    for reader in norm.readers:
        changes.change_inputs(reader, Axis(scale=scale))


def scale_values(changes: EquivalentTransforms, attention: Attention, scale: Scale) -> None:
    """Value rows times `scale` `[kv_heads · head_dim]`, the columns of o that read them divided by it."""
    untouched = np.ones((attention.heads + attention.kv_heads) * attention.head_dim)
    rows = Axis(scale=np.concatenate([untouched, scale]))
    changes.change_outputs(attention.qkv, rows)
    changes.change_outputs(attention.qkv_bias, rows)
    changes.change_inputs(attention.o, Axis(scale=1 / spread_over_heads(scale, attention)))


def scale_gate(changes: EquivalentTransforms, gate: Gate, scale: Scale) -> None:
    """Up rows times `scale` `[inner]`, the columns of down divided by it."""
    rows = Axis(scale=np.concatenate([np.ones_like(scale), scale]))
    changes.change_outputs(gate.gate_up, rows)
    changes.change_outputs(gate.gate_up_bias, rows)
    changes.change_inputs(gate.down, Axis(scale=1 / scale))


def spread_over_heads(values: Scale, attention: Attention) -> Scale:
    """`[kv_heads · head_dim]` → `[heads · head_dim]`: each key-value head's channels for all its query heads."""
    per_head = values.reshape(attention.kv_heads, attention.head_dim)
    return np.repeat(per_head, attention.heads // attention.kv_heads, axis=0).reshape(-1)


def average_over_heads(values: Floats, attention: Attention) -> Floats:
    """`[heads · head_dim]` → `[kv_heads · head_dim]`: the mean over the query heads that share a channel."""
    shared = attention.heads // attention.kv_heads
    per_head = values.reshape(attention.kv_heads, shared, attention.head_dim)
    result: Floats = per_head.mean(axis=1).reshape(-1)
    return result
