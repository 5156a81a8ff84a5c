"""Adapters to the inputs of a bundle's graphs: modules that a graph computes side by side become one pair of matrices.

A graph's `qkv_proj` is the checkpoint's q, k and v: its A is `[in, 3 r]`, theirs side by side, and its B `[3 r, out]`
has each one's rows where its outputs lie.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..bundle.bundle import Bundle
from ..errors import BundleError, CheckpointError, OptionError, UnsupportedError
from .peft import Adapter, Matrix, read_adapter

_TEMPLATE = "chat_template.jinja"
_PARTS: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.up_proj": ("mlp.up_proj",),
    "mlp.down_proj": ("mlp.down_proj",),
}


@dataclass(frozen=True)
class FittedAdapter:
    """By a graph's product: A `[in, width]` and B `[width, out]`. `widths` are those of each kind of module."""

    name: str
    matrices: Mapping[str, tuple[Matrix, Matrix]]
    widths: Mapping[str, int]


def load_adapters(bundle: Bundle, folders: Mapping[str, str | Path]) -> list[FittedAdapter]:
    """The adapters of these folders, by name, in their order.

    Raises:
        BundleError: the bundle takes no adapters.
        OptionError: a name that cannot be one.
        CheckpointError, UnsupportedError: an adapter cannot be read, or does not fit the bundle.
    """
    if not folders:
        return []
    sizes = adapter_ports(bundle)
    if not sizes:
        raise BundleError(
            f"{bundle.folder} takes no adapters at run time. Make one that does, over the same weights: "
            f"onnxlm export {bundle.folder} --lora-inputs -o NEW"
        )
    for name in folders:
        if not name or ":" in name or name != name.strip():
            raise OptionError(f"lora: {name!r} cannot be the name of an adapter: it must not be empty or have a colon.")
    for folder in folders.values():
        _require_same_template(bundle, Path(folder))
    return [_fitted(bundle, read_adapter(name, Path(folder)), sizes) for name, folder in folders.items()]


def _require_same_template(bundle: Bundle, folder: Path) -> None:
    """Raise UnsupportedError for an adapter that was trained with another chat template than the bundle's."""
    template = folder / _TEMPLATE
    try:
        if not template.is_file() or not bundle.has(_TEMPLATE):
            return
        same = template.read_bytes().strip() == bundle.path(_TEMPLATE).read_bytes().strip()
    except OSError as error:
        raise CheckpointError(f"{template}: cannot be read ({error.strerror}).") from error
    if not same:
        raise UnsupportedError(
            f"{template} differs from the chat template of {bundle.folder}, which all its adapters share. Delete the "
            "file if the adapter was not trained with it, or merge the adapter: onnxlm export CHECKPOINT --lora DIR."
        )


def adapter_ports(bundle: Bundle) -> dict[str, tuple[int, int]]:
    """(in, out) of each product that takes adapters, by its name; empty for most bundles."""
    ports = {port.name: port for port in bundle.manifest.graphs.prefill.inputs}
    names = [name.removesuffix(".lora_a") for name, port in ports.items() if port.role == "lora_a"]
    return {name: (int(ports[f"{name}.lora_a"].shape[0]), int(ports[f"{name}.lora_b"].shape[1])) for name in names}


def require_no_adapter_inputs(bundle: Bundle, what: str) -> None:
    """Raise BundleError for a bundle whose graphs take adapters; `what` names the caller's purpose."""
    if adapter_ports(bundle):
        raise BundleError(
            f"{bundle.folder} takes LoRA adapters as inputs, so {what} is not possible with it. Start from the bundle "
            "that it was made of, and add the inputs (onnxlm export BUNDLE --lora-inputs) in the end."
        )


def kind_of(product: str) -> str:
    """model.layers.3.mlp.down_proj → mlp.down_proj."""
    return ".".join(product.split(".")[3:])


def _fitted(bundle: Bundle, adapter: Adapter, sizes: Mapping[str, tuple[int, int]]) -> FittedAdapter:
    left = set(adapter.factors)
    matrices = {}
    for product, size in sizes.items():
        layer, kind = int(product.split(".")[2]), kind_of(product)
        parts = [adapter.factors.get((layer, part)) for part in _PARTS[kind]]
        left -= {(layer, part) for part in _PARTS[kind]}
        if any(part is not None for part in parts):
            matrices[product] = _joined(adapter, product, parts, size, _outputs(bundle, layer, kind, size[1]))
    if left:
        layer, module = min(left)
        raise UnsupportedError(
            f"adapter {adapter.name!r} changes layer {layer}, {module}, which {bundle.folder} has no input for. Is it "
            "of another model? Else merge it: onnxlm export CHECKPOINT --lora DIR."
        )
    kinds = {kind_of(product) for product in sizes}
    widths = {k: max((a.shape[1] for p, (a, _) in matrices.items() if kind_of(p) == k), default=0) for k in kinds}
    return FittedAdapter(adapter.name, matrices, widths)


def _outputs(bundle: Bundle, layer: int, kind: str, total: int) -> list[int]:
    """Where each part's outputs begin and end."""
    if kind == "self_attn.qkv_proj":
        about = bundle.manifest.architecture.layers[layer]
        query, key = about.num_heads * about.head_dim, about.kv_heads * about.head_dim
        return [0, query, query + key, query + 2 * key]
    return [0, total // 2, total] if kind == "mlp.gate_up_proj" else [0, total]


def _joined(
    adapter: Adapter,
    product: str,
    parts: Sequence[tuple[Matrix, Matrix] | None],
    size: tuple[int, int],
    borders: Sequence[int],
) -> tuple[Matrix, Matrix]:
    present = [(part, span) for part, span in zip(parts, pairwise(borders), strict=True) if part is not None]
    for (a, b), (start, stop) in present:
        if a.shape[1] != size[0] or b.shape[0] != stop - start or borders[-1] != size[1]:
            raise UnsupportedError(
                f"adapter {adapter.name!r} is of another model: for {product} it has factors {list(a.shape)} and "
                f"{list(b.shape)}, and the bundle's product takes {size[0]} and gives {stop - start}."
            )
    width = sum(a.shape[0] for (a, _), _ in present)
    joined = np.zeros((width, size[1]), np.float32)
    row = 0
    for (a, b), (start, stop) in present:
        joined[row : row + a.shape[0], start:stop] = b.T
        row += a.shape[0]
    return np.ascontiguousarray(np.concatenate([a for (a, _), _ in present]).T), joined
