"""Orders of rows and columns that GGUF files change, and the ones that undo them. Entry j is stored entry order[j].

An order is made only after the metadata was found to explain the size of the tensor: absurd metadata costs no memory.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.errors import CheckpointError

from .config import Keys
from .file import GgufTensorInfo

Index = npt.NDArray[np.int64]
Order = Callable[[Keys, GgufTensorInfo], Index]


class Heads(NamedTuple):
    """Number of query heads, of key/value heads, and their size."""

    queries: int
    keys: int
    size: int

    def __str__(self) -> str:
        return f"{self.queries} query heads and {self.keys} key heads of size {self.size}"


class LinearHeads(NamedTuple):
    """Heads of a gated delta layer: `values` is a multiple of `keys`."""

    keys: int
    values: int
    key_size: int
    value_size: int

    def __str__(self) -> str:
        return f"{self.keys} key heads of size {self.key_size} and {self.values} value heads of size {self.value_size}"


def read_heads(keys: Keys) -> Heads:
    """The heads of attention layers."""
    return Heads(keys.integer("attention.head_count"), keys.kv_heads, keys.head_dim)


def read_linear_heads(keys: Keys) -> LinearHeads:
    """The heads of gated delta layers."""
    count, inner = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    return LinearHeads(keys.integer("ssm.group_count"), count, keys.integer("ssm.state_size"), inner // count)


def require_rows(info: GgufTensorInfo, heads: Heads | LinearHeads, expected: int, axis: int = 0) -> None:
    """Refuse a tensor that is not made of these heads."""
    if info.shape[axis] != expected:
        raise CheckpointError(
            f"{info.range.path}: tensor {info.name!r} has {info.shape[axis]} {('rows', 'columns')[axis]}, "
            f"which do not fit the metadata: {heads}."
        )


def half_from_pairs(count: int, size: int) -> Index:
    """From rows (2i, 2i+1) of a head, as interleaved rotation has them, to rows (i, i + D/2)."""
    return np.arange(count * size).reshape(count, size // 2, 2).swapaxes(1, 2).reshape(-1)


def _halves_of_queries(keys: Keys, info: GgufTensorInfo) -> Index:
    heads = read_heads(keys)
    require_rows(info, heads, heads.queries * heads.size // 2 * 2)
    return half_from_pairs(heads.queries, heads.size)


def _halves_of_keys(keys: Keys, info: GgufTensorInfo) -> Index:
    heads = read_heads(keys)
    require_rows(info, heads, heads.keys * heads.size // 2 * 2)
    return half_from_pairs(heads.keys, heads.size)


def grouped_qkv(keys: Keys, info: GgufTensorInfo) -> Index:
    """From q | k | v back to `[its query heads, k, v]` per key/value head (Falcon; GPT-NeoX and BLOOM: per head)."""
    heads = read_heads(keys)
    group = heads.queries // heads.keys
    require_rows(info, heads, heads.keys * (group + 2) * heads.size)
    rows = np.arange(info.shape[0])
    parts = np.split(rows, [heads.queries * heads.size, (heads.queries + heads.keys) * heads.size])
    shaped = (part.reshape(heads.keys, -1, heads.size) for part in parts)
    return np.concatenate(list(shaped), axis=1).reshape(-1)


def _untiled(heads: LinearHeads, size: int) -> Index:
    """Value head g·r + j is stored as j·Hk + g; `size` entries each."""
    rows = np.arange(heads.values * size).reshape(heads.values // heads.keys, heads.keys, size)
    return rows.swapaxes(0, 1).reshape(-1)


def value_heads(keys: Keys, info: GgufTensorInfo) -> Index:
    """Rows that are one, or one vector, per value head."""
    heads = read_linear_heads(keys)
    size = 1 if info.shape[0] == heads.values else heads.value_size
    require_rows(info, heads, heads.values * size)
    return _untiled(heads, size)


def value_columns(keys: Keys, info: GgufTensorInfo) -> Index:
    """Columns that are one vector per value head."""
    heads = read_linear_heads(keys)
    require_rows(info, heads, heads.values * heads.value_size, axis=1)
    return _untiled(heads, heads.value_size)


def values_behind_keys(keys: Keys, info: GgufTensorInfo) -> Index:
    """Rows q | k | v of a gated delta layer: only v is tiled."""
    heads = read_linear_heads(keys)
    first = 2 * heads.keys * heads.key_size
    require_rows(info, heads, first + heads.values * heads.value_size)
    return np.concatenate([np.arange(first), first + _untiled(heads, heads.value_size)])


def grouped_qkvz(keys: Keys, rows: int) -> Index:
    """From q | k | v | z to `[q, k, its value heads of v, of z]` per key head."""
    heads = read_linear_heads(keys)
    sizes = [heads.keys * heads.key_size] * 2 + [heads.values * heads.value_size] * 2
    if rows != sum(sizes):
        raise CheckpointError(f"{keys.file.path}: attn_qkv and attn_gate have {rows} rows for {heads}.")
    parts = np.split(np.arange(rows), np.cumsum(sizes)[:-1])
    return np.concatenate([part.reshape(heads.keys, -1) for part in parts], axis=1).reshape(-1)


HALVES: Mapping[str, Order] = {"attn_q": _halves_of_queries, "attn_k": _halves_of_keys}
GROUPED: Mapping[str, Order] = {"attn_qkv": grouped_qkv}
TILED: Mapping[str, Order] = {
    "attn_qkv": values_behind_keys,
    "ssm_conv1d": values_behind_keys,
    **dict.fromkeys(("attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt"), value_heads),
}
