"""Slopes of attention with linear biases (Press et al. 2022), as each family rounds the number of heads."""

import math


def bloom_slopes(heads: int) -> tuple[float, ...]:
    """BLOOM, Falcon: those of the power of two below, then every second of the power of two above."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    return tuple(first + [2.0 ** (-4 * (2 * j + 1) / power) for j in range(heads - power)])


def mpt_slopes(heads: int, bias_max: float = 8.0) -> tuple[float, ...]:
    """MPT: those of the power of two above, every second one first."""
    power = 2 ** math.ceil(math.log2(heads))
    slopes = [2.0 ** (-bias_max * (h + 1) / power) for h in range(power)]
    return tuple(slopes if power == heads else (slopes[1::2] + slopes[::2])[:heads])
