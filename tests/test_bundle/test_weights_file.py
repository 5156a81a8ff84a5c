"""weights.bin as FORMAT.md section 4 says: pages, no overlaps, every weight on disk once."""

from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime.bundle.onnx_outline import read_outline
from runtime.cli.main import main

PAGE, SMALL, SMALL_ALIGNMENT = 4096, 1 << 16, 64


@pytest.fixture(scope="module", params=["float", "int4"])
def bundle(request, tiny_bundle, tmp_path_factory) -> Path:
    """The exporter's bundle, and what the quantizer makes of it."""
    if request.param == "float":
        return tiny_bundle
    target = tmp_path_factory.mktemp("int4") / "bundle"
    done = CliRunner().invoke(main, ["quantize", str(tiny_bundle), "-o", str(target), "--bits", "4"])
    assert done.exit_code == 0, done.output
    return target


def places(bundle: Path) -> dict[str, set[tuple[int, int]]]:
    """(offset, length) of everything that a graph takes from weights.bin."""
    found = {}
    for phase in ("prefill", "decode"):
        tensors = [t for t in read_outline(bundle / f"{phase}.onnx").initializers if t.location]
        assert {tensor.location for tensor in tensors} == {"weights.bin"}
        found[phase] = {(tensor.offset, tensor.nbytes) for tensor in tensors}
    return found


def test_every_weight_is_aligned(bundle):
    found = set().union(*places(bundle).values())
    assert [offset for offset, _ in found if offset % SMALL_ALIGNMENT] == []
    assert [offset for offset, length in found if length >= SMALL and offset % PAGE] == []


def test_both_graphs_take_the_same_bytes(bundle):
    found = places(bundle)
    assert found["prefill"] == found["decode"]


def test_nothing_overlaps_and_nothing_is_stored_twice(bundle):
    spans = sorted(set().union(*places(bundle).values()))
    ends = [0, *(offset + length for offset, length in spans)]
    assert all(0 <= offset - end < PAGE for (offset, _), end in zip(spans, ends, strict=False))
    assert 0 <= (bundle / "weights.bin").stat().st_size - ends[-1] < PAGE


def test_the_gaps_are_zero(bundle):
    data = (bundle / "weights.bin").read_bytes()
    spans = sorted(set().union(*places(bundle).values()))
    gaps = [data[a + n : b] for (a, n), (b, _) in pairwise(spans)]
    assert not any(any(gap) for gap in gaps)


def test_only_small_constants_stay_in_the_graphs(bundle):
    inside = [t for phase in ("prefill", "decode") for t in read_outline(bundle / f"{phase}.onnx").initializers]
    assert [t for t in inside if t.location is None and t.nbytes > 1024] == []
