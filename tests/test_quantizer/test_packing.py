"""Bytes: packed as MatMulNBits reads them, and read back by an independent path."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_weights import dequantize_packed

from quantizer.algorithms.grid_search import search_matrix
from quantizer.algorithms.rtn import round_to_nearest
from quantizer.storage.matrix import NO_RESIDUALS, QuantizedMatrix
from quantizer.storage.packing import pack, packed_bytes
from quantizer.storage.resume import ResumeCache
from quantizer.storage.scales import plan_scales
from quantizer.storage.scheme import BITS, GROUP_SIZES, SCALE_BITS, QuantConfig, Scheme
from quantizer.storage.unpacking import require_round_trip
from runtime.errors import QuantizationError

SCHEMES = st.builds(
    Scheme, st.sampled_from(BITS), st.sampled_from(GROUP_SIZES), st.booleans(), st.sampled_from(SCALE_BITS)
)


def quantized(rows, inputs, scheme, seed=0):
    weight = np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)
    return round_to_nearest(weight, scheme, plan_scales(weight, scheme, np.float16))


def test_bytes_of_a_known_matrix():
    codes = np.arange(16, dtype=np.uint8).reshape(1, 16)
    packed = pack(QuantizedMatrix(Scheme(4, 16), codes, np.ones((1, 1), np.float32), np.array([[5]], np.uint8)))
    assert packed.codes.tolist() == [[[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]]]
    assert packed.zero_points is not None
    assert packed.zero_points.tolist() == [[0x05]]  # the row is padded to a whole byte


def test_zero_points_are_padded_per_row():
    zeros = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    packed = pack(QuantizedMatrix(Scheme(4, 16), np.zeros((2, 48), np.uint8), np.ones((2, 3), np.float32), zeros))
    assert packed.zero_points is not None
    assert packed.zero_points.tolist() == [[0x21, 0x03], [0x54, 0x06]]


@given(scheme=SCHEMES, rows=st.integers(1, 5), inputs=st.integers(1, 700), seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_unpacking_is_exact_for_any_shape(scheme, rows, inputs, seed):
    matrix = quantized(rows, inputs, scheme, seed)
    packed = pack(matrix, np.float16)
    read = dequantize_packed(packed, scheme.bits, scheme.group_size, inputs)
    assert np.array_equal(read, matrix.dequantize())
    assert packed.nbytes == packed_bytes(rows, inputs, QuantConfig(scheme), 2)


def test_scales_of_eight_bits_cost_little():
    weight = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    lost = []
    for bits in SCALE_BITS:
        scheme = Scheme(4, 32, scale_bits=bits)
        matrix = search_matrix(weight, np.ones(256, np.float32), scheme, plan_scales(weight, scheme, np.float16))
        assert pack(matrix, np.float16).scales.itemsize == bits // 8
        lost.append(float(np.linalg.norm(weight - matrix.dequantize())))
    assert lost[0] < 1.005 * lost[1]


def test_steps_keep_tiny_scales_from_vanishing():
    weight = np.ones((1, 64), np.float32)
    weight[0, 32:] = 1e-4
    scheme = Scheme(4, 32, scale_bits=8)
    matrix = round_to_nearest(weight, scheme, plan_scales(weight, scheme, np.float16))
    assert matrix.scales.min() > 0


def test_a_wrong_byte_is_found():
    matrix = quantized(4, 40, Scheme(4))
    packed = pack(matrix)
    damaged = packed.codes.copy()
    damaged[2, 1, 0] ^= 1
    with pytest.raises(QuantizationError, match="down_proj"):
        require_round_trip("down_proj", replace(packed, codes=damaged), matrix)


def test_padding_decodes_to_zero():
    scheme = Scheme(4, 32)
    packed = pack(quantized(3, 40, scheme))
    assert not dequantize_packed(packed, 4, 32, 64)[:, 40:].any()


def test_finished_codes_take_half_a_byte_each(tmp_path):
    weight = np.random.default_rng(0).standard_normal((6, 33)).astype(np.float32)
    made = (round_to_nearest(weight, Scheme(4, 16)), NO_RESIDUALS)
    cache, config = ResumeCache(tmp_path, "plan"), QuantConfig(Scheme(4, 16))
    cache.get_or_make("w", config, np.dtype(np.float32), lambda: made)
    found, _ = cache.get_or_make("w", config, np.dtype(np.float32), lambda: pytest.fail("was made again"))
    assert np.array_equal(found.codes, made[0].codes)
    assert np.array_equal(found.dequantize(), made[0].dequantize())
    assert b'["codes", "|u1", [6, 17]]' in (tmp_path / "w.codes").read_bytes()
