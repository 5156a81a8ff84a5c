"""Where a bundle's bits went: bytes of its weights by layer, and by how they are stored."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.bundle.bundle import Bundle
from runtime.bundle.manifest import Manifest, QuantizedTensor

from ..storage.weights_file import WEIGHTS_NAME

FLOAT = "floating point"
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_TABLES, _REST = "tables", "rest"


@dataclass(frozen=True)
class Shares:
    """Bytes of weights.bin.

    Attributes:
        places: "tables" (embedding and head), the number of each layer, and "rest": what is in no quantized matrix.
        stored: "int4", "int8", "floating point"; for each, the bytes of every place.
    """

    places: tuple[str, ...]
    stored: dict[str, tuple[int, ...]]

    def totals(self) -> dict[str, int]:
        """Bytes by how they are stored."""
        return {name: sum(parts) for name, parts in self.stored.items()}


@dataclass(frozen=True)
class Kind:
    """Matrices that differ only in their layer, stored alike. Errors are relative: ‖W − Ŵ‖ / ‖W‖."""

    name: str
    stored: str
    tensors: tuple[QuantizedTensor, ...]

    @property
    def errors(self) -> list[float]:
        """Of each matrix."""
        return [tensor.relative_error for tensor in self.tensors]


def bits_per_weight(bundle: Bundle) -> float:
    """Bits of weights.bin for each parameter."""
    return bundle.manifest.bits_per_weight


def find_shares(manifest: Manifest) -> Shares:
    """Read the shares from what the manifest says of each matrix and of the whole file."""
    tensors = manifest.quantization.tensors if manifest.quantization else ()
    places = (_TABLES, *(str(layer) for layer in range(len(manifest.architecture.layers))), _REST)
    stored: dict[str, list[int]] = {}
    for tensor in sorted(tensors, key=lambda each: each.bits):
        row = stored.setdefault(f"int{tensor.bits}", [0] * len(places))
        row[places.index(_place(tensor.name, places))] += tensor.bytes
    left = manifest.files[WEIGHTS_NAME].size - sum(tensor.bytes for tensor in tensors)
    stored[FLOAT] = [0] * (len(places) - 1) + [max(0, left)]
    return Shares(places, {name: tuple(row) for name, row in stored.items()})


def kinds(tensors: Sequence[QuantizedTensor]) -> list[Kind]:
    """Group matrices by name without the layer, and by how they are stored."""
    groups: dict[tuple[str, str], list[QuantizedTensor]] = {}
    for tensor in tensors:
        groups.setdefault((re.sub(r"\.\d+\.", ".*.", tensor.name.removesuffix(".weight")), _stored(tensor)), []).append(
            tensor
        )
    return [Kind(name, stored, tuple(members)) for (name, stored), members in groups.items()]


def layer_of(name: str) -> int | None:
    """The layer that a matrix is in; None for tables."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def _place(name: str, places: Sequence[str]) -> str:
    layer = layer_of(name)
    return _TABLES if layer is None or str(layer) not in places else str(layer)


def _stored(tensor: QuantizedTensor) -> str:
    more = f" +{tensor.outliers} outlier channels" if tensor.outliers else ""
    return f"int{tensor.bits} g{tensor.group_size} {'symmetric' if tensor.symmetric else 'asymmetric'}{more}"
