"""`--residual-channels auto`: a share of the bytes for second codes, spent where they help."""

from dataclasses import replace

import numpy as np
import pytest
from float_copy import write_float_copy

from quantizer.calibration.data import split
from quantizer.evaluation.kl import Model, evaluate
from quantizer.flow import quantize
from quantizer.presets import Storage, make_recipe
from quantizer.transforms.equivalent import Axis, EquivalentTransforms
from runtime.bundle.bundle import open_bundle

CHUNKS = np.random.default_rng(3).integers(3, 320, (6, 48))
TEXT = split("random", CHUNKS)
AUTO = make_recipe(storage=Storage(bits=4, group_size=16, residual_channels="auto"))
NONE = replace(AUTO, residual_share=None)
LOUD = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def loud(tiny_bundle, tmp_path_factory):
    """A bundle in which one matrix reads six inputs that are louder than the others; attention adds little to it."""

    def plan(structure, read):
        changes, rows = EquivalentTransforms(), np.ones((2, 96))
        rows[1, :6] = 30
        changes.change_outputs(structure.gates[0].gate_up, Axis(scale=rows.ravel()))
        changes.change_outputs(structure.attentions[0].o, Axis(scale=np.full(64, 0.02)))
        return changes

    target = tmp_path_factory.mktemp("loud") / "bundle"
    write_float_copy(tiny_bundle, target, plan)
    return target


def outliers(result):
    return {tensor.name: tensor.outliers for tensor in result.manifest.quantization.tensors}


def test_the_matrix_with_loud_inputs_gets_them(loud, tmp_path):
    result = quantize(loud, tmp_path / "q", replace(AUTO, residual_share=0.02), text=TEXT)
    assert {name: count for name, count in outliers(result).items() if count} == {LOUD: 16}


def test_the_share_is_kept_and_helps(loud, tmp_path):
    found = {}
    for name, recipe in {"none": NONE, "auto": AUTO}.items():
        size = quantize(loud, tmp_path / name, recipe, text=TEXT).manifest.files["weights.bin"].size
        kl = evaluate(Model(open_bundle(tmp_path / name)), Model(open_bundle(loud)), CHUNKS[:2]).kl
        found[name] = size, kl
    assert 1.01 < found["auto"][0] / found["none"][0] <= 1 + AUTO.residual_share
    assert found["auto"][1] < 0.8 * found["none"][1]


@pytest.mark.parametrize("recipe", [AUTO, replace(AUTO, residual_share=0.1), replace(NONE, budget=9.0)])
def test_a_run_that_was_stopped_goes_on(recipe, loud, tmp_path):
    """Another share, or a budget, needs no other measurements."""
    doing, work = [], tmp_path / "work"

    def stop(step, done, total):
        if step.startswith("measuring") and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(loud, tmp_path / "q", AUTO, text=TEXT, work=work, progress=stop)
    quantize(loud, tmp_path / "q", recipe, text=TEXT, work=work, progress=lambda *step: doing.append(step[0]))
    quantize(loud, tmp_path / "whole", recipe, text=TEXT)
    assert sum(step.startswith("measuring") for step in doing) == 2  # a layer, and the table
    assert (tmp_path / "q" / "weights.bin").read_bytes() == (tmp_path / "whole" / "weights.bin").read_bytes()


def test_eight_bits_get_none_and_nothing_is_measured(tiny_bundle, tmp_path):
    doing = []
    recipe = make_recipe(storage=Storage(bits=8, residual_channels="auto"))
    result = quantize(tiny_bundle, tmp_path / "q", recipe, text=TEXT, progress=lambda *step: doing.append(step[0]))
    assert not any(outliers(result).values())
    assert not any(step.startswith("measuring") for step in doing)


def test_wide_groups(make_checkpoint, make_bundle, tmp_path):
    bundle = make_bundle(make_checkpoint(intermediate_size=300))
    recipe = make_recipe(storage=Storage(bits=4, group_size=128, residual_channels="auto"))
    result = quantize(bundle, tmp_path / "q", replace(recipe, residual_share=0.2), text=TEXT)
    assert set(outliers(result).values()) == {0, 128}


def test_an_untied_embedding_gets_none(make_checkpoint, make_bundle, tmp_path):
    bundle = make_bundle(make_checkpoint(tie_word_embeddings=False))
    recipe = make_recipe(storage=Storage(bits=4, embedding_bits=4, residual_channels="auto"))
    result = quantize(bundle, tmp_path / "q", replace(recipe, residual_share=1.0), text=TEXT)
    found = outliers(result)
    assert (found["model.embed_tokens.weight"], found["lm_head.weight"]) == (0, 32)
