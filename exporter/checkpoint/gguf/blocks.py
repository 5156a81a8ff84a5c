"""The block formats of GGUF, to float32. The gguf package's own dequantization is the reference, to the bit."""

from collections.abc import Callable
from functools import partial

import numpy as np

from runtime.errors import UnsupportedError

from ..checkpoint import FloatArray
from ..stored import BlockFormat, Bytes


def block_format(type_name: str, where: str) -> BlockFormat:
    """How tensors of this type are stored; raises UnsupportedError, naming `where`, if nothing here can read it."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType[type_name]
    block, size = GGML_QUANT_SIZES[kind]
    decode: Callable[[Bytes], FloatArray] = FAST.get(type_name) or partial(dequantize, qtype=kind)
    try:
        decode(np.zeros((1, size), np.uint8))
    except NotImplementedError as error:
        raise UnsupportedError(f"{where}: stored as {type_name}, which cannot be read as weights.") from error
    return BlockFormat(block, size, decode)


def _q8_0(data: Bytes) -> FloatArray:
    return _half(data, 0) * data[:, 2:].view(np.int8)


def _q4_0(data: Bytes) -> FloatArray:
    return _half(data, 0) * (_nibbles(data[:, 2:]).view(np.int8) - np.int8(8))


def _q4_1(data: Bytes) -> FloatArray:
    values = _half(data, 0) * _nibbles(data[:, 4:])
    values += _half(data, 2)
    return values


def _half(data: Bytes, start: int) -> FloatArray:
    """float16 at byte `start` of every block, as float32 [rows, 1]."""
    return np.ascontiguousarray(data[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """[rows, B/2] to [rows, B]: low nibbles first, then the high ones."""
    result = np.empty((data.shape[0], 2 * data.shape[1]), np.uint8)
    np.bitwise_and(data, 15, out=result[:, : data.shape[1]])
    np.right_shift(data, 4, out=result[:, data.shape[1] :])
    return result


# The formats of the small models that get exported again and again; anything else goes through the package.
FAST: dict[str, Callable[[Bytes], FloatArray]] = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1}
