"""Every family in float16, on CPU: as near to float32 as transformers is in float16, and of the same opinion.

Logits of random models are close to each other: of some positions in a hundred, the first two differ by less than what
rounding to 11 bits changes. How much that is, transformers in float16 says: positions whose first two logits are nearer
than twice its deviation (the 99th percentile of it) are ties, which rounding may decide either way. At all other
positions the best token must be the same, and in all, at 98 of 100. Families with experts have jumps, where the router
itself is at a tie; those with norms behind small numbers (gated delta rule, Gemma's attention without a scale) deviate
ten times as much as others, in transformers as here.
"""

import numpy as np
import pytest
import torch
from tiny_families import CASES, save_random

POSITIONS = (2, 128)  # rows and their length: 256 in all


@pytest.fixture(scope="module", params=CASES, ids=map(str, CASES))
def family(request, pair, tmp_path_factory):
    """A random model of float16 numbers, as checkpoints have them, and its float16 bundle."""
    folder = tmp_path_factory.mktemp("family")
    model = save_random(request.param, folder).half()
    model.float().save_pretrained(folder)
    return model, pair(folder, dtype="float16")


def logits_of(model, ids):
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor(ids), use_cache=False).logits.float().numpy()
    return logits.reshape(-1, logits.shape[-1])


def deviations(logits, reference):
    return np.abs(logits - reference).max(axis=1)


def test_top_1_of_256_positions(family):
    model, both = family
    ids = both.ids(np.prod(POSITIONS)).reshape(POSITIONS)
    reference, theirs = logits_of(model.float(), ids), logits_of(model.half(), ids)
    ours = both.batch(ids, [ids.shape[1]] * len(ids), list(np.ndindex(*POSITIONS)))
    assert np.median(deviations(ours, reference)) <= 1.25 * np.median(deviations(theirs, reference))
    same = ours.argmax(axis=1) == reference.argmax(axis=1)
    first_two = np.sort(reference, axis=1)[:, -2:]
    clear = first_two[:, 1] - first_two[:, 0] > 2 * np.quantile(deviations(theirs, reference), 0.99)
    assert same[clear].all()
    assert same.mean() >= 0.98


def test_decoding_continues_prefill(family):
    model, both = family
    ids = both.ids(32, seed=1)[None]
    deviation = np.median(deviations(logits_of(model.half(), ids), logits_of(model.float(), ids)))
    at_once = both.batch(ids, [32], [(0, position) for position in range(15, 32)])
    assert np.median(deviations(both.ours(ids[0], 16), at_once)) <= 2 * deviation
