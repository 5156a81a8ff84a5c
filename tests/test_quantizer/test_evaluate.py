"""Scores: zero against itself, right against a direct computation."""

import numpy as np
import pytest

from quantizer.calibration.data import Text
from quantizer.evaluation.kl import Model, evaluate
from quantizer.evaluation.quality import activation_rounding
from quantizer.flow import quantize
from quantizer.recipe import Recipe
from quantizer.storage.scheme import QuantConfig, Scheme
from runtime.bundle.bundle import open_bundle
from runtime.errors import QuantizationError

CHUNKS = np.random.default_rng(1).integers(3, 320, (2, 30))


@pytest.fixture(scope="module")
def pair(tiny_bundle, tmp_path_factory):
    target = tmp_path_factory.mktemp("int4") / "bundle"
    quantize(tiny_bundle, target, Recipe(QuantConfig(Scheme(4)), QuantConfig(Scheme(8, 32, symmetric=True))))
    return Model(open_bundle(target)), Model(open_bundle(tiny_bundle))


def test_a_model_agrees_with_itself(pair):
    scores = evaluate(pair[1], pair[1], CHUNKS)
    assert (scores.kl, scores.kl_p99, scores.top1) == (0, 0, 1)
    assert scores.perplexity == scores.reference_perplexity


def test_scores_are_what_they_say(pair):
    scores = evaluate(*pair, CHUNKS)
    ours, theirs = ([m.log_probabilities(m.hidden(ids[None])[0]) for ids in CHUNKS] for m in pair)
    kl = [(np.exp(t) * (t - o)).sum(axis=1) for o, t in zip(ours, theirs, strict=True)]
    assert scores.kl == pytest.approx(np.mean(kl), rel=1e-4)
    assert scores.kl_late == pytest.approx(np.mean([k[15:] for k in kl]), rel=1e-4)
    nll = [-o[np.arange(29), ids[1:]].mean() for o, ids in zip(ours, CHUNKS, strict=True)]
    assert scores.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-4)
    assert scores.tokens == 60


def test_slices_do_not_show(pair):
    whole = evaluate(*pair, CHUNKS)
    assert evaluate(*pair, CHUNKS, rows=7).kl == pytest.approx(whole.kl, rel=1e-5)


def test_rounded_activations_cost_a_part_of_the_whole(pair, tiny_bundle, tmp_path):
    quantize(tiny_bundle, tmp_path / "q", Recipe(QuantConfig(Scheme(4)), QuantConfig(Scheme(8, 32, symmetric=True))))
    rounding = activation_rounding(open_bundle(tmp_path / "q"), Text("t", CHUNKS[:0], CHUNKS, "t"))
    assert rounding is not None
    assert 0 < rounding.kl < evaluate(*pair, CHUNKS).kl
    assert activation_rounding(open_bundle(tiny_bundle), Text("t", CHUNKS[:0], CHUNKS, "t")) is None


def test_no_text_is_an_error(pair):
    with pytest.raises(QuantizationError, match="empty"):
        evaluate(*pair, np.zeros((0, 5), np.int64))
