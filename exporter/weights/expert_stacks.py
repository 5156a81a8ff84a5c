"""Stacks of experts' matrices into weights.bin: the checkpoint's codes, or codes made while they are read.

One matrix after the other: a stack is never in memory whole, but where its operator reads its matrices side by side.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from quantizer.graph.expert_stacks import store_stack
from quantizer.storage.matrix import QuantizedMatrix

from .lossless_repack import repacked_stack, scale_kind, with_scales_as
from .pack import read_packed_stack, relative_loss

if TYPE_CHECKING:
    from quantizer.graph.quantizable import QuantizableWeight
    from quantizer.storage.scheme import QuantConfig, Scheme
    from quantizer.storage.stored import StoredMatrix
    from quantizer.storage.weights_file import WeightsWriter
    from runtime.bundle.manifest import QuantizedTensor

    from .plan import Weight


def store_kept_stack(
    writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight", scheme: "Scheme"
) -> "tuple[StoredMatrix, QuantizedTensor]":
    """Store the checkpoint's own codes of all matrices, in the one scheme that holds them."""
    kind = scale_kind(repacked_stack(weight, site, scheme), weight.dtype.numpy())
    stack = (with_scales_as(matrix, kind) for matrix in repacked_stack(weight, site, scheme))
    return store_stack(writer, site, stack, kind, 0.0)


def store_packed_stack(
    writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight", config: "QuantConfig", method: str
) -> "tuple[StoredMatrix, QuantizedTensor]":
    """Store the codes that `onnxlm quantize` makes of the exported stack."""
    made, kind = read_packed_stack(weight, site, config, method)
    losses: list[tuple[float, float]] = []

    def matrices() -> Iterator[QuantizedMatrix]:
        for packed in made:
            losses.append((packed.lost, packed.whole))
            yield packed.matrix

    stored, entry = store_stack(writer, site, matrices(), kind, 0.0)
    return stored, replace(entry, relative_error=relative_loss(losses))
