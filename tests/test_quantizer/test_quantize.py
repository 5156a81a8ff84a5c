"""The whole flow on a tiny exported model: bundle in, bundle out."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from packed_weights import dequantize_packed

from quantizer.calibration.data import split
from quantizer.evaluation.kl import Model, evaluate
from quantizer.flow import quantize
from quantizer.graph.graphs import load_graphs
from quantizer.recipe import Recipe
from quantizer.storage.scheme import QuantConfig, Scheme
from quantizer.storage.weights_file import read_tensor
from runtime.bundle import json_codec
from runtime.bundle.bundle import open_bundle
from runtime.errors import BundleError, QuantizationError
from runtime.ort.session import open_session

EMBEDDING = QuantConfig(Scheme(8, 32, symmetric=True))
INT4 = Recipe(QuantConfig(Scheme(4, 32)), EMBEDDING)
INT8 = Recipe(QuantConfig(Scheme(8, 32)), EMBEDDING)


def logits(folder, ids):
    """Last-token logits of the prefill graph for one sequence from an empty cache."""
    bundle = open_bundle(folder)
    count = len(ids)
    feeds = {"input_ids": np.array([ids]), "seqlens_k": np.array([count - 1], np.int32)}
    feeds |= {"total_sequence_length": np.array(count, np.int32), "logits_index": np.array([[0, count - 1]])}
    for port in bundle.manifest.graphs.prefill.inputs:
        if port.role in ("past_key", "past_value"):
            feeds[port.name] = np.zeros((1, port.shape[1], count, port.shape[3]), np.float32)
    return open_session(folder / "prefill.onnx").run(["logits"], feeds)[0][0]


@pytest.fixture(scope="module")
def int4(tiny_bundle, tmp_path_factory):
    target = tmp_path_factory.mktemp("int4") / "bundle"
    return target, quantize(tiny_bundle, target, INT4)


def test_int8_keeps_the_logits(tiny_bundle, tmp_path):
    quantize(tiny_bundle, tmp_path / "q", INT8)
    expected, actual = logits(tiny_bundle, [5, 6, 7, 8]), logits(tmp_path / "q", [5, 6, 7, 8])
    assert np.abs(actual - expected).max() < 0.1 * expected.std()
    assert not np.array_equal(actual, expected)


def test_int4_is_close_and_smaller(tiny_bundle, int4):
    folder, result = int4
    expected, actual = logits(tiny_bundle, [5, 6, 7, 8]), logits(folder, [5, 6, 7, 8])
    assert np.corrcoef(actual, expected)[0, 1] > 0.8  # random weights: no redundancy to absorb the rounding
    assert (folder / "weights.bin").stat().st_size < 0.35 * (tiny_bundle / "weights.bin").stat().st_size
    assert result.bits_per_weight < 10


def test_every_matrix_is_quantized_and_reported(tiny_bundle, int4):
    folder, result = int4
    manifest = open_bundle(folder, verify=True).manifest
    layers = len(manifest.architecture.layers)
    assert len(result.outcomes) == 4 * layers + 1
    assert manifest.quantization is not None
    assert {tensor.bits for tensor in manifest.quantization.tensors} == {4, 8}
    assert all(0 < tensor.relative_error < 0.2 for tensor in manifest.quantization.tensors)
    assert "com.microsoft::MatMulNBits" in manifest.target.operators
    assert "ai.onnx::MatMul" not in manifest.target.operators


def test_stored_weights_are_what_the_recipe_says(tiny_bundle, int4):
    """Read the file back with the attributes of the graph, and compare with the float weights."""
    folder, _ = int4
    before = load_graphs(open_bundle(tiny_bundle)).models["decode.onnx"].graph.initializers
    for node in load_graphs(open_bundle(folder)).models["decode.onnx"].graph:
        if node.op_type == "MatMulNBits" and node.name != "lm_head":
            number = {name: attribute.as_int() for name, attribute in node.attributes.items()}
            weight = read_tensor(before[f"{node.name}.weight"].const_value).T
            assert (number["bits"], number["block_size"], number["accuracy_level"]) == (4, 32, 4)
            read = dequantize_packed(packed_of(node), number["bits"], number["block_size"], number["K"])
            assert np.linalg.norm(read - weight) < 0.12 * np.linalg.norm(weight)


def packed_of(node):
    from quantizer.storage.packing import PackedMatrix

    cast, graph = node.inputs[2].producer(), node.graph
    scales = read_tensor(graph.initializers[cast.inputs[0].name].const_value)
    return PackedMatrix(read_tensor(node.inputs[1].const_value), scales, read_tensor(node.inputs[3].const_value))


def test_both_graphs_share_the_bytes(int4):
    graphs = load_graphs(open_bundle(int4[0]))
    places = [
        {n: (v.const_value.offset, v.const_value.length) for n, v in m.graph.initializers.items() if external(v)}
        for m in graphs.models.values()
    ]
    assert places[0] == places[1]


def external(value):
    return isinstance(value.const_value, ir.ExternalTensor)


def test_recipe_in_the_manifest_reproduces_the_file(tiny_bundle, int4, tmp_path):
    folder, result = int4
    again = json_codec.decode(Recipe, json_codec.encode(result.manifest.quantization.recipe))
    quantize(tiny_bundle, tmp_path / "again", again)
    assert (tmp_path / "again" / "weights.bin").read_bytes() == (folder / "weights.bin").read_bytes()


def test_excluded_matrices_stay_float(tiny_bundle, tmp_path):
    result = quantize(tiny_bundle, tmp_path / "q", replace(INT4, exclude=("model.layers.0.*", "*embed*")))
    names = [tensor.name for tensor in result.manifest.quantization.tensors]
    assert names
    assert all(name.startswith("model.layers.1.") for name in names)


def test_exclude_without_a_match_lists_near_names(tiny_bundle, tmp_path):
    with pytest.raises(QuantizationError, match=r"model\.layers\.0\.mlp\.down_proj"):
        quantize(tiny_bundle, tmp_path / "q", replace(INT4, exclude=("model.layers.0.mlp.down_prj",)))
    assert list(tmp_path.iterdir()) == []


def test_a_quantized_bundle_is_refused(int4, tmp_path):
    with pytest.raises(QuantizationError, match="quantized already"):
        quantize(int4[0], tmp_path / "q", INT4)


def test_nothing_is_stored_larger(tiny_bundle, tmp_path):
    """Group 256 over 64 inputs would store four times the codes: 8 bits then grow to the float size."""
    result = quantize(tiny_bundle, tmp_path / "q", Recipe(QuantConfig(Scheme(8, 256)), EMBEDDING))
    grown = [o for o in result.outcomes if o.tensor is None]
    assert grown
    assert all("would grow" in o.reason and o.site.inputs == 64 for o in grown)


def test_broken_weights_are_named(tiny_bundle, tmp_path):
    from shutil import copytree

    copytree(tiny_bundle, tmp_path / "broken")
    tensor = load_graphs(open_bundle(tiny_bundle)).initializers()["model.layers.1.mlp.down_proj.weight"]
    with (tmp_path / "broken" / "weights.bin").open("r+b") as file:
        file.seek(tensor.offset + 40)
        file.write(np.array([np.nan], np.float32).tobytes())
    with pytest.raises(QuantizationError, match=r"layers\.1\.mlp\.down_proj\.weight: holds NaN"):
        quantize(tmp_path / "broken", tmp_path / "q", INT4)
    assert not (tmp_path / "q").exists()


def test_an_existing_target_is_kept(tiny_bundle, int4, tmp_path):
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "notes.txt").write_text("mine")
    with pytest.raises(BundleError, match="exists"):
        quantize(tiny_bundle, tmp_path / "q", INT4)
    with pytest.raises(BundleError, match="did not write it"):
        quantize(tiny_bundle, tmp_path / "q", INT4, overwrite=True)


PEAK = """
import sys
from pathlib import Path
from quantizer.flow import quantize
from quantizer import QuantConfig, Recipe, Scheme
from runtime.host.memory import peak_memory
before = peak_memory()
recipe = Recipe(QuantConfig(Scheme(4)), QuantConfig(Scheme(8, 32, symmetric=True)))
quantize(Path(sys.argv[1]), Path(sys.argv[2]), recipe)
print(peak_memory() - before)
"""


def test_one_tensor_in_memory_at_a_time(tiny_bundle, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PEAK, tiny_bundle, tmp_path / "q"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 40e6  # nothing grows with the model but its largest tensor


GPTQ = Recipe(QuantConfig(Scheme(4, 32), 32), EMBEDDING, method="gptq", permute=True, smoothing=True, polish=1)
CHUNKS = np.random.default_rng(2).integers(3, 320, (8, 64))
TEXT = split("random", CHUNKS)


@pytest.mark.parametrize("embedding", [QuantConfig(Scheme(8, 32, True)), QuantConfig(Scheme(4, 32, True), 32)])
def test_gptq_loses_less_than_round_to_nearest(tiny_bundle, tmp_path, embedding):
    quantize(tiny_bundle, tmp_path / "gptq", replace(GPTQ, embedding=embedding), text=TEXT)
    quantize(tiny_bundle, tmp_path / "rtn", replace(INT4, embedding=replace(embedding, residual_channels=0)))
    reference = Model(open_bundle(tiny_bundle))
    ours, plain = (evaluate(Model(open_bundle(tmp_path / n)), reference, CHUNKS[:2]) for n in ("gptq", "rtn"))
    assert ours.kl < 0.5 * plain.kl
    manifest = open_bundle(tmp_path / "gptq").manifest
    assert manifest.quantization.calibration.tokens == TEXT.chunks.size
    assert {tensor.outliers for tensor in manifest.quantization.tensors} >= {32}


def test_prefill_and_decode_agree_after_gptq(tiny_bundle, tmp_path):
    """One token at a time through decode.onnx gives what prefill.onnx gives."""
    quantize(tiny_bundle, tmp_path / "q", replace(GPTQ, embedding=QuantConfig(Scheme(4, 32, True), 32)), text=TEXT)
    expected = logits(tmp_path / "q", [5, 6, 7])
    session, cache = open_session(tmp_path / "q" / "decode.onnx"), {}
    for past, token in enumerate([5, 6, 7]):
        feeds = {"input_ids": np.array([[token]]), "seqlens_k": np.array([past], np.int32)}
        feeds |= {"total_sequence_length": np.array(past + 1, np.int32)}
        for node in session.get_inputs():
            if node.name.startswith("past"):
                feeds[node.name] = cache.get(node.name, np.zeros((1, 2, 8, 16), np.float32))
        names = [node.name for node in session.get_outputs()]
        out = dict(zip(names, session.run(names, feeds), strict=True))
        cache = {name.replace("present", "past_key_values"): array for name, array in out.items()}
    np.testing.assert_allclose(out["logits"][0], expected, atol=0.05 * expected.std())


def test_what_cannot_be_written_is_our_error(tiny_bundle, tmp_path):
    (tmp_path / "work").write_text("a file where a folder is needed")
    with pytest.raises(QuantizationError, match="nothing was written"):
        quantize(tiny_bundle, tmp_path / "q", GPTQ, text=TEXT, work=tmp_path / "work")
    assert not (tmp_path / "q").exists()
