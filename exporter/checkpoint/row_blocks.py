"""A matrix some rows at a time, where its stored form allows it: a token table need not be in memory whole."""

from collections.abc import Iterator

from .checkpoint import FloatArray, TensorSource
from .gguf_tensor import GgufTensor
from .safetensors_file import SafetensorsTensor

BLOCK_VALUES = 1 << 22


def row_blocks(source: TensorSource) -> Iterator[FloatArray]:
    """The values of a matrix `[rows, columns]` in float32, blocks of rows in their order."""
    if len(source.shape) != 2 or not isinstance(source, SafetensorsTensor | GgufTensor):
        yield source.read()
        return
    rows, columns = source.shape
    step = max(1, BLOCK_VALUES // columns)
    for start in range(0, rows, step):
        part = source.rows(start, min(start + step, rows))
        if part is None:
            yield source.read()
            return
        yield part.read()
