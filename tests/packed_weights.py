"""What MatMulNBits sees in packed bytes, decoded here bit by bit, by none of the product's code."""

import numpy as np


def fields(rows, bits):
    """The numbers `[N, count]` of `bits` bits each in bytes `[N, bytes]`, the lowest bits first."""
    ones = np.unpackbits(np.ascontiguousarray(rows, np.uint8), axis=1, bitorder="little")
    ones = ones.reshape(len(rows), -1, bits)
    return (ones << np.arange(bits)).sum(axis=2).astype(np.float32)


def dequantize_packed(packed, bits, group_size, inputs):
    """The weights `[N, inputs]`: (code - zero point) x scale, group by group."""
    rows, groups = packed.scales.shape
    codes = fields(packed.codes.reshape(rows, -1), bits)[:, : groups * group_size].reshape(rows, groups, group_size)
    zeros = np.full((rows, groups), 1 << (bits - 1), np.float32)
    if packed.zero_points is not None:
        zeros = fields(packed.zero_points, bits)[:, :groups]
    scales = np.asarray(packed.scales).astype(np.float32)
    if packed.steps is not None:  # scales in 8 bits are counts of a step for each row
        scales = scales * packed.steps.astype(np.float32)
    return ((codes - zeros[:, :, None]) * scales[:, :, None]).reshape(rows, -1)[:, :inputs]
