"""Every family, with each of its features on, agrees with transformers: prefill, decode, windows, scaled ropes."""

import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tiny_families import CASES, save_random

from exporter.checkpoint import open_checkpoint
from exporter.verify.reference import reference_logits
from models.families.registry import FAMILIES
from models.families.registry import describe as describe_decoder
from runtime.errors import UnsupportedError

DECODED = 16  # steps
# Windows of 8 and 16 begin to slide while the short one is decoded; the long one is beyond ropes' switches at 32.
PREFILLED = {"short": 4, "long": 45}
ROWS = (5, 17, 1, 9)  # of a right-padded batch


@pytest.fixture(scope="module", params=CASES, ids=map(str, CASES))
def family(request, pair, tmp_path_factory):
    """A random model of the case, and its bundle."""
    folder = tmp_path_factory.mktemp("family")
    return save_random(request.param, folder), pair(folder)


def logits_of(model, ids):
    with torch.inference_mode():
        return model(input_ids=torch.tensor(ids[None]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("length", PREFILLED)
def test_agrees_with_transformers(family, length):
    model, both = family
    prefilled = PREFILLED[length]
    ids = both.ids(prefilled + DECODED, seed=prefilled)
    theirs = logits_of(model, ids)
    ours = both.ours(ids, prefilled)
    assert len(ours) == DECODED + 1
    np.testing.assert_allclose(ours, theirs[prefilled - 1 :], atol=1e-4 * max(1, np.abs(theirs).max()))


def test_ragged_batch_agrees_with_transformers(family):
    model, both = family
    if any(port.role == "past_state" for port in both.manifest.graphs.prefill.inputs):
        pytest.skip("padding would change the states")
    ids = both.ids(max(ROWS), seed=2)
    theirs = logits_of(model, ids)
    batch = np.stack([np.where(np.arange(len(ids)) < length, ids, 7) for length in ROWS])
    ours = both.batch(batch, ROWS, [(row, length - 1) for row, length in enumerate(ROWS)])
    wanted = theirs[np.array(ROWS) - 1]
    np.testing.assert_allclose(ours, wanted, atol=1e-4 * max(1, np.abs(theirs).max()))


def test_graphs_pass_the_checker(family):
    _, both = family
    files = [both.runner.folder / graph.file for graph in (both.manifest.graphs.prefill, both.manifest.graphs.decode)]
    assert len(files) == 2
    for path in files:
        onnx.checker.check_model(path, full_check=True)  # shape inference included


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_bigcode", "gpt_neox", "mixtral", "minimax_m2", "deepseek_v3"])
def test_reference_holds_all_weights(model_type, tmp_path):
    case = next(case for case in CASES if case.model_type == model_type)
    model, ids = save_random(case, tmp_path), list(range(20))
    with torch.inference_mode():
        theirs = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()
    np.testing.assert_allclose(reference_logits(open_checkpoint(tmp_path), ids), theirs, atol=1e-5)


@pytest.mark.parametrize("model_type", ["lfm2", "qwen3_next", "qwen3_5_text", "granitemoehybrid"])
def test_states_carry_a_prompt_over_chunks(model_type, pair, tmp_path):
    save_random(next(case for case in CASES if case.model_type == model_type), tmp_path)
    both = pair(tmp_path)
    ids = both.ids(24)
    both.runner.prefill(ids[:1])  # shorter than the convolution
    both.runner.prefill(ids[1:10])
    np.testing.assert_allclose(both.runner.prefill(ids[10:]), both.ours(ids, 24)[0], atol=1e-5)
    assert any(port.role == "past_state" for port in both.manifest.graphs.decode.inputs)


@pytest.mark.parametrize("model_type", ["gemma3n_text", "gemma4_text", "qwen3_5_text"])
def test_text_model_of_a_multimodal_checkpoint(model_type, pair, tmp_path):
    plain, nested = tmp_path / "plain", tmp_path / "nested"
    plain.mkdir()
    save_random(next(case for case in CASES if case.model_type == model_type), plain)
    nest(plain, nested)
    ids = np.arange(20)
    np.testing.assert_array_equal(pair(nested).ours(ids, 17), pair(plain).ours(ids, 17))


def nest(plain, folder):
    """The checkpoint as the text model of one that sees: a prefix, another model's tensors, prediction heads."""
    shutil.copytree(plain, folder)
    text = json.loads((plain / "config.json").read_text())
    outer = {"model_type": text["model_type"].removesuffix("_text"), "text_config": text, "vision_config": {"depth": 2}}
    (folder / "config.json").write_text(json.dumps(outer))
    tensors = load_file(plain / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    others = {"model.visual.patch.weight": np.ones((2, 2), np.float32), "mtp.fc.weight": np.ones((2, 2), np.float32)}
    save_file(renamed | others, folder / "model.safetensors")


@pytest.mark.parametrize(
    "model_type", ["phi3", "opt", "mpt", "ministral3", "gemma2", "olmo2", "gpt_oss", "deepseek_v3"]
)
def test_chunks_of_several_sequences_equal_each_alone(model_type, ragged_chunks, tmp_path):
    save_random(next(case for case in CASES if case.model_type == model_type), tmp_path)
    for one in ragged_chunks(tmp_path):
        np.testing.assert_allclose(*one.logits, atol=1e-5)
        assert all(np.allclose(got, wanted, atol=1e-5) for got, wanted in one.cache)


@pytest.mark.parametrize(("model_type", "why"), [("gemma3n_text", "share keys and values"), ("lfm2", "keep a state")])
def test_chunks_of_several_sequences_are_refused_where_wrong(model_type, why, pair, tmp_path):
    save_random(next(case for case in CASES if case.model_type == model_type), tmp_path)
    with pytest.raises(UnsupportedError, match=f"{why}.* Export it with --target-ort 1.31"):
        pair(tmp_path, target_ort="1.32")


def test_every_family_has_a_case():
    assert {case.model_type for case in CASES} | {"llama"} == set(FAMILIES)


def test_every_config_of_the_list_is_understood(tmp_path):
    case = next(case for case in CASES if case.model_type == "gemma2")
    save_random(case, tmp_path)
    decoder, _ = describe_decoder(open_checkpoint(tmp_path).config)
    assert [layer.attention.window for layer in decoder.layers] == [8, None]
