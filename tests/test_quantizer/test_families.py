"""Families whose graphs differ from Llama's: what is absorbed stays exact, and what is quantized runs."""

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM

from quantizer.calibration_text import split
from quantizer.evaluate import Model, evaluate
from quantizer.float_copy import write_float_copy
from quantizer.fold import plan_folding
from quantizer.graphs import load_graphs
from quantizer.permute import plan_permutations
from quantizer.presets import Storage, make_recipe
from quantizer.quantize import quantize
from quantizer.rearrange import Rearrangements
from quantizer.sites import find_sites, transposed_weights
from quantizer.structure import find_structure
from quantizer.weights_file import read_tensor
from runtime.bundle import open_bundle

BASE: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
OPT = {"ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False, **BASE}
for key in ("intermediate_size", "num_key_value_heads"):
    del OPT[key]
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": BASE | {"tie_word_embeddings": True},  # biases of q, k and v
    "qwen3": BASE | {"head_dim": 32},  # queries and keys are normed on their own
    "gemma2": BASE | {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 8},  # norms behind the branches
    "olmo": BASE | {"clip_qkv": 0.5},  # norms without weights
    "olmo2": BASE,  # only norms behind the branches
    "stablelm": BASE | {"hidden_size": 128, "use_parallel_residual": True, "partial_rotary_factor": 0.5},
    "phi": BASE | {"hidden_size": 128, "num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    "gpt2": {"vocab_size": 131, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128},  # learned positions
    "opt": OPT,  # a projected table, norms behind
    "qwen3_moe": BASE | EXPERTS | {"head_dim": 32, "mlp_only_layers": [1]},
}
IDS = np.random.default_rng(0).integers(3, 131, (4, 24))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory, make_bundle):
    """A bundle of random weights, every vector moved off its ones and zeros."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, **FAMILIES[request.param])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    for parameter in model.parameters():
        scale = 0.1 if parameter.dim() == 1 else 0.5 / parameter.shape[-1] ** 0.5
        parameter.data.add_(scale * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>")).to_str())
    return request.param, make_bundle(folder)


def log_probabilities(folder):
    model = Model(open_bundle(folder))
    return model.log_probabilities(model.hidden(IDS).reshape(-1, model.hidden(IDS).shape[-1]))


def test_absorbed_changes_are_exact(family, tmp_path):
    _, source = family
    rng = np.random.default_rng(1)

    def plan(structure, read):
        bundle = open_bundle(source)
        graph = load_graphs(bundle).models["prefill.onnx"].graph
        turned = transposed_weights(graph)
        sites = find_sites(graph, bundle.manifest.architecture.vocab_size)
        squares = {s.weight: rng.uniform(0.1, 10, s.inputs).astype(np.float32) for s in sites}
        assert all(read(name).ndim == 2 for name in turned)
        changes = Rearrangements()
        plan_permutations(structure, squares.get, changes)
        plan_folding(structure, squares.get, lambda _: 0.5, changes)
        return changes

    write_float_copy(source, tmp_path / "copy", plan)
    expected = log_probabilities(source)
    np.testing.assert_allclose(log_probabilities(tmp_path / "copy"), expected, atol=2e-4 * np.abs(expected).max())


def test_what_is_recognised(family):
    name, folder = family
    bundle = open_bundle(folder)
    graphs = load_graphs(bundle)
    found = find_structure(graphs.models["prefill.onnx"].graph, bundle.manifest.architecture.vocab_size)
    without_stream = {"qwen3_moe", "opt"}  # an experts' operator reads it; the tied head reads another value
    assert (found.stream is None) == (name in without_stream)
    without_values = {"olmo"}  # clipped between the matrices
    assert len(found.attentions) == (0 if name in without_values else 2)
    assert all(read_tensor(graphs.initializers()[link.o]).ndim == 2 for link in found.attentions)


def test_gptq_runs_and_beats_round_to_nearest(family, tmp_path):
    _, source = family
    text = split("random", np.random.default_rng(2).integers(3, 131, (12, 64)))
    quantize(source, tmp_path / "gptq", make_recipe(method="gptq", storage=Storage(bits=4)), text=text)
    quantize(source, tmp_path / "rtn", make_recipe(method="rtn", storage=Storage(bits=4)))
    reference = Model(open_bundle(source))
    ours, plain = (evaluate(Model(open_bundle(tmp_path / n)), reference, text.held_out) for n in ("gptq", "rtn"))
    assert 0 < ours.kl < plain.kl


def test_ragged_batch_equals_alone(family, tmp_path):
    _, source = family
    quantize(source, tmp_path / "q", make_recipe(preset="fast"))
    model = Model(open_bundle(tmp_path / "q"))
    together = model.hidden(IDS)
    alone = np.concatenate([model.hidden(ids[None]) for ids in IDS])
    np.testing.assert_allclose(together, alone, atol=1e-5 * np.abs(alone).max())
