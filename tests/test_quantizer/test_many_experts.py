"""Models with the proportions of Qwen3-30B-A3B and gpt-oss-20b: many experts, few for a token, some of them rare."""

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_families import Case, save_random

from quantizer.algorithms.hessian import Hessian
from quantizer.algorithms.polish import loss
from quantizer.algorithms.quantize_matrix import quantize_matrix
from quantizer.calibration.data import find_text
from quantizer.calibration.hessians import collect_hessians
from quantizer.flow import quantize
from quantizer.graph.expert_stacks import experts_config
from quantizer.presets import Storage, make_recipe
from quantizer.storage.scheme import Scheme
from quantizer.storage.weights_file import read_part
from runtime.bundle.bundle import open_bundle

QWEN = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 48, "norm_topk_prob": True}
OSS = {"num_local_experts": 32, "num_experts_per_tok": 4, "hidden_size": 144, "intermediate_size": 144}
SHAPES = [
    Case("qwen3_moe", QWEN | {"hidden_size": 128, "head_dim": 32, "num_key_value_heads": 1, "mlp_only_layers": []}),
    Case("gpt_oss", OSS | {"head_dim": 32, "num_key_value_heads": 1, "sliding_window": 8}),
]
TOKENS = np.random.default_rng(5).integers(3, 131, (96, 128))


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def source(request, tmp_path_factory, make_bundle):
    folder = tmp_path_factory.mktemp("shape")
    save_random(request.param, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in (name for name in tensors if name.endswith(("mlp.gate.weight", "mlp.router.weight"))):
        tensors[name][::2] *= 0.4  # these experts are seldom among the first
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return make_bundle(folder)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.npy"
    np.save(path, TOKENS)
    return path


def test_drawn_tokens_count_for_the_experts_that_lacked_some(source, tmp_path):
    """They have all that they read of both texts; the others keep what they had of the first."""
    hessians = collect_hessians(open_bundle(source), TOKENS[:1], tmp_path / "one")
    (had, *_), fingerprint = hessians.experts.seen, hessians.fingerprint
    lacking = had.lacking()
    hessians.draw(TOKENS[1:3], tmp_path / "drawn")
    both = collect_hessians(open_bundle(source), TOKENS[:3], tmp_path / "both").experts.seen[0]
    has, others = hessians.experts.seen[0], np.setdiff1d(np.arange(len(had.tokens())), lacking)
    assert len(lacking) > 5
    assert len(others) >= 2
    assert fingerprint != hessians.fingerprint
    np.testing.assert_array_equal(has.tokens()[lacking], both.tokens()[lacking])
    np.testing.assert_array_equal(has.tokens()[others], had.tokens()[others])
    for site in had.experts.sites:
        expert = max(lacking, key=lambda expert: has.tokens()[expert])
        ours, theirs = (seen.rows(site.weight, expert)[: has.tokens()[expert]] for seen in (has, both))
        np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.abs(theirs).max())


def test_a_run_draws_from_the_file_for_experts_that_lack_some(source, text, tmp_path):
    told: dict[str, None] = {}
    recipe = make_recipe(method="gptq", storage=Storage(bits=4), calibration=str(text), calibration_tokens=512)
    quantize(source, tmp_path / "q", recipe, work=tmp_path / "work", progress=lambda phase, *_: told.setdefault(phase))
    assert any(phase.startswith("drawing 2,048 tokens for ") for phase in told)
    again = quantize(source, tmp_path / "again", recipe, work=tmp_path / "work").manifest  # from what is there
    assert again.files["weights.bin"] == open_bundle(tmp_path / "q").manifest.files["weights.bin"]


def test_further_text_is_neither_calibrated_on_before_nor_measured_on(source, text, tmp_path):
    recipe = make_recipe(method="gptq", calibration=str(text), calibration_tokens=512)
    found = find_text(open_bundle(source), recipe, tmp_path, lambda *_: None)
    rows = [{tuple(row) for row in part} for part in (found.chunks, found.held_out, found.spare)]
    assert sum(map(len, rows)) == len(rows[0] | rows[1] | rows[2])
    assert len(found.spare) <= 3 * (len(found.chunks) + len(found.held_out))


def test_experts_that_drew_tokens_lose_less_of_other_text(source, tmp_path):
    """GPTQ by what they read of further text, and by what they borrow from other experts."""
    hessians = collect_hessians(open_bundle(source), TOKENS[:2], tmp_path / "few")
    alone, lacking = hessians.experts, hessians.experts.seen[0].lacking()
    hessians.draw(TOKENS[2:48], tmp_path / "drawn")
    fresh = collect_hessians(open_bundle(source), TOKENS[48:], tmp_path / "fresh").experts
    site, lost = fresh.seen[0].experts.sites[0], np.zeros(2)
    stack, config = (
        fresh.seen[0].experts.gate_up.const_value,
        experts_config(site, Scheme(4)),
    )
    for expert in (expert for expert in lacking if fresh.seen[0].tokens()[expert] >= 64):
        weight, truth = read_part(stack, expert), Hessian(fresh.read(site.weight, expert))
        known = [one.read(site.weight, expert) for one in (alone, hessians.experts)]
        codes = [quantize_matrix(weight, one, config, "gptq", np.float16)[0] for one in known]
        lost += [loss(one, weight, truth) for one in codes]
    print(f"loss {lost[1] / lost[0]:.3f}")
    assert 0 < lost[1] < 0.95 * lost[0]
