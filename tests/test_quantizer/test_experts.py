"""Stacks of experts: recognised, computed as the graph computes them, quantized each by itself, stored together."""

import logging
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from packed_weights import dequantize_packed

from quantizer.algorithms.hessian import Hessian
from quantizer.algorithms.polish import loss
from quantizer.algorithms.quantize_matrix import quantize_matrix
from quantizer.calibration.data import split
from quantizer.calibration.half import from_half
from quantizer.calibration.hessians import collect_hessians
from quantizer.calibration.segments import Segment, body, empty_cache_feeds, find_cut
from quantizer.evaluation.kl import Model
from quantizer.flow import quantize
from quantizer.graph.expert_stacks import experts_config
from quantizer.graph.experts import find_experts
from quantizer.graph.graphs import load_graphs
from quantizer.graph.quantizable import find_quantizable_weights
from quantizer.presets import Storage, make_recipe
from quantizer.storage.scheme import Scheme
from quantizer.storage.weights_file import read_part, read_tensor
from runtime.bundle.bundle import open_bundle

# Renormalised weights; softmax over all experts; biases and a limit; any weights at all; every expert computed.
KINDS = ["mixtral", "qwen2_moe", "gpt_oss", "deepseek_v3", "gemma4_text experts"]
CHUNKS = np.random.default_rng(2).integers(3, 131, (12, 64))
TEXT = split("random", CHUNKS)


@pytest.fixture(scope="module", params=KINDS)
def source(request, make_family):
    return make_family(request.param)


def prefill(folder):
    return load_graphs(open_bundle(folder)).models["prefill.onnx"].graph


def test_every_layer_of_experts_is_found(source):
    found = list(find_experts(prefill(source)))
    assert found
    stacks = [v for v in prefill(source).initializers.values() if ".experts." in v.name and len(v.shape) == 3]
    assert {site.weight for experts in found for site in experts.sites} == {value.name for value in stacks}
    for site in found[0].sites:
        weight = read_part(prefill(source).initializers[site.weight].const_value, 0)
        assert (weight.T if site.transposed else weight).shape == (site.rows, site.inputs)


def test_one_part_is_what_all_of_it_holds(source):
    stack = next(find_experts(prefill(source))).down.const_value
    assert all(np.array_equal(read_part(stack, i), read_tensor(stack)[i]) for i in range(stack.shape[0]))


def test_experts_are_computed_as_in_the_graph(source):
    """Mixed by `mixing`, what `inner` gives times `down` is what the graph's experts give."""
    graph, bundle = prefill(source), open_bundle(source)
    cut = find_cut(graph)
    model = body(graph, cut, 0, len(cut.borders) + 1)
    experts = list(find_experts(model.graph))[-1]
    for value in (experts.x, experts.routing, experts.last.outputs[0]):
        value.type = ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs.append(value)
    *_, x, routing, wanted = Segment(model, source)(empty_cache_feeds(bundle, CHUNKS[:1])).values()
    x, mixing, count = x.reshape(-1, x.shape[-1]), experts.mixing(routing), len(routing.T)
    down = [read_part(experts.down.const_value, i) for i in range(count)]
    outputs = [experts.inner(x, i) @ (down[i].T if experts.is_operator else down[i]) for i in range(count)]
    biases = read_tensor(experts.first.inputs[5].const_value) if len(experts.first.inputs) > 5 else np.zeros((count, 1))
    total = sum(mixing[:, i, None] * (outputs[i] + biases[i]) for i in range(count))
    np.testing.assert_allclose(total, wanted.reshape(total.shape), atol=2e-5 * np.abs(wanted).max())


def test_their_quantized_operator_computes_what_is_stored(source, tmp_path):
    """8 bits, nothing else quantized: nearly the float model, whichever way the experts are mixed."""
    others = tuple(site.name for site in find_quantizable_weights(prefill(source), 131))
    quantize(source, tmp_path / "q", replace(make_recipe(storage=Storage(bits=8)), exclude=others))
    ours, theirs = (Model(open_bundle(folder)).hidden(CHUNKS[:2]) for folder in (tmp_path / "q", source))
    errors = np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(theirs, axis=-1)
    assert 0 < np.median(errors) < 0.05  # some tokens go to other experts
    operators = open_bundle(tmp_path / "q").manifest.target.operators
    assert "com.microsoft::MoE" not in operators
    assert not any(len(v.shape or ()) == 3 and v.dtype == ir.DataType.FLOAT and ".experts." in v.name
                   for v in prefill(tmp_path / "q").initializers.values())  # fmt: skip


def test_stored_codes_are_those_of_each_expert(make_family, tmp_path):
    source = make_family("mixtral")
    quantize(source, tmp_path / "q", make_recipe(method="rtn", storage=Storage(bits=4, group_size=32)))
    node = next(node for node in prefill(tmp_path / "q") if node.op_type == "QMoE")
    stack = next(find_experts(prefill(source))).gate_up.const_value
    codes, cast, zeros = node.inputs[2], node.inputs[3].producer(), node.inputs[11]
    parts = [read_tensor(v.const_value) for v in (codes, cast.inputs[0], zeros)]
    assert node.attributes.get_int("expert_weight_bits", 0) == 4
    for expert in range(4):
        read = dequantize_packed(packed(*[part[expert] for part in parts]), 4, 32, 64)
        weight = read_part(stack, expert)
        assert 0.02 < np.linalg.norm(read - weight) / np.linalg.norm(weight) < 0.12


def packed(codes, scales, zeros):
    from quantizer.storage.packing import PackedMatrix

    return PackedMatrix(codes.reshape(len(codes), scales.shape[1], -1), scales, zeros)


def test_hessians_are_those_of_the_tokens_that_an_expert_takes(source, tmp_path):
    hessians = collect_hessians(open_bundle(source), CHUNKS, tmp_path)
    experts = next(find_experts(prefill(source)))
    names = [experts.gate_up.name, experts.down.name]
    for name, site in zip(names, experts.sites, strict=True):
        hessian = hessians.experts.read(name, 1)
        assert hessian.shape == (site.inputs, site.inputs)
        assert hessian.diagonal().min() > 0
        assert np.linalg.eigvalsh(hessian).min() > -1e-4 * hessian.diagonal().max()
    assert not np.allclose(hessians.experts.read(names[0], 0), hessians.experts.read(names[0], 1))


def test_gptq_loses_less_by_each_expert_s_own_tokens(source, tmp_path):
    hessians = collect_hessians(open_bundle(source), CHUNKS, tmp_path).experts
    for site in next(find_experts(prefill(source))).sites:
        stack, lost = prefill(source).initializers[site.weight].const_value, np.zeros(2)
        for expert in range(site.count):
            weight, hessian = read_part(stack, expert), hessians.read(site.weight, expert)
            weight = np.ascontiguousarray(weight.T) if site.transposed else weight
            candidates = [
                quantize_matrix(weight, g, experts_config(site, Scheme(4)), "gptq", np.float16)[0]
                for g in (hessian, None)
            ]
            lost += [
                loss(candidate, weight, Hessian(np.eye(site.inputs) if hessian is None else hessian))
                for candidate in candidates
            ]
        assert lost[0] < 0.97 * lost[1]


def test_experts_that_saw_too_little_are_named(make_family, tmp_path, caplog):
    text = split("few", CHUNKS[:1, :16])
    with caplog.at_level(logging.WARNING, logger="onnxlm.quantizer"):
        quantize(make_family("mixtral"), tmp_path / "q", make_recipe(method="gptq", storage=Storage(bits=4)), text=text)
    assert "model.layers.0.mlp.experts: experts " in caplog.text
    assert "saw too few tokens" in caplog.text


def test_an_expert_that_lacks_tokens_borrows_from_all(make_family, tmp_path):
    """With one token of its own, a Hessian is nearly that of all the layer's tokens; with many, its own alone."""
    hessians = collect_hessians(open_bundle(make_family("mixtral")), CHUNKS, tmp_path).experts
    (seen,) = {id(seen): seen for name, seen in hessians._seen.items() if ".layers.0." in name}.values()
    site = seen.experts.sites[0]
    own = seen.rows(site.weight, 0)
    assert len(own) == seen.tokens()[0] == seen.weight_of(0, site.inputs)
    chosen, mixing = seen.text._routes[0]
    seen.text._routes[0] = chosen[:1], mixing[:1]
    assert seen.weight_of(0, site.inputs) == 8
    x = from_half(np.load(seen.text.files[0])).reshape(-1, site.inputs)
    alike = np.corrcoef(hessians.read(site.weight, 0).ravel(), (x.T @ x).ravel())[0, 1]
    assert alike > 0.7
    assert len(seen.rows(site.weight, 0)) == 1 + site.inputs


def test_both_stacks_are_left_out_together(make_family, tmp_path):
    recipe = replace(make_recipe(preset="fast"), exclude=("model.layers.0.mlp.experts.down_proj",))
    tensors = quantize(make_family("mixtral"), tmp_path / "q", recipe).manifest.quantization.tensors
    names = [tensor.name for tensor in tensors if ".experts." in tensor.name]
    assert names == [f"model.layers.1.mlp.experts.{part}.weight" for part in ("gate_up_proj", "down_proj")]


def test_a_budget_stores_both_stacks_of_a_layer_alike(make_family, tmp_path):
    result = quantize(make_family("mixtral"), tmp_path / "q", make_recipe(budget=6.0), text=TEXT)
    bits = {tensor.name: (tensor.bits, tensor.group_size) for tensor in result.manifest.quantization.tensors}
    for layer in range(2):
        stacks = [f"model.layers.{layer}.mlp.experts.{part}.weight" for part in ("gate_up_proj", "down_proj")]
        assert bits[stacks[0]] == bits[stacks[1]]
    assert 5.5 < result.bits_per_weight <= 6.0


@pytest.mark.parametrize(("asked", "divisor", "given"), [(32, 96, 32), (128, 96, 32), (64, 2880, 64), (32, 48, 16)])
def test_groups_divide_the_inputs_of_experts(make_family, asked, divisor, given):
    site = replace(next(find_experts(prefill(make_family("mixtral")))).sites[0], divisor=divisor)
    assert experts_config(site, Scheme(4, asked)).scheme.group_size == given
