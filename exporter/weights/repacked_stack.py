"""Stacks of experts' matrices whose codes in the checkpoint are kept, one matrix after the other."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from quantizer.graph.expert_stacks import store_stack
from quantizer.storage.matrix import QuantizedMatrix

from .lossless_repack import repacked_in_stack, scale_kind, with_scales_as
from .scale_kind import BeliedError
from .stacks import slices

if TYPE_CHECKING:
    import numpy.typing as npt

    from quantizer.graph.quantizable import QuantizableWeight
    from quantizer.storage.scheme import Scheme
    from quantizer.storage.stored import StoredMatrix
    from quantizer.storage.weights_file import WeightsWriter
    from runtime.bundle.manifest import QuantizedTensor

    from .plan import Weight


def store_repacked_stack(
    writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight", scheme: "Scheme"
) -> "tuple[StoredMatrix, QuantizedTensor]":
    """Store the checkpoint's own codes of all matrices, in the one scheme that holds them, and read them once.

    Scales take half precision until one of them is not exact in it; then the stack is begun anew.
    """
    activations = weight.dtype.numpy()

    def stored(kind: "npt.DTypeLike") -> "tuple[StoredMatrix, QuantizedTensor]":
        def made(number: int, part: "Weight") -> QuantizedMatrix:
            matrix = repacked_in_stack(weight.name, number, part, site, scheme)
            if kind == np.float16 and scale_kind(matrix, activations) != kind:
                raise BeliedError
            return with_scales_as(matrix, kind)

        stack = (partial(made, number, part) for number, part in enumerate(slices(weight)))
        return store_stack(writer, site, stack, lambda: kind, 0.0)

    try:
        return stored(np.float16 if activations == np.float32 else activations)
    except BeliedError:
        return stored(np.float32)
