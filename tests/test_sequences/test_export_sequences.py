"""Embedding models and rerankers against transformers and sentence-transformers, and what is refused."""

import json

import numpy as np
import pytest
import torch
from conftest import TINY_CONFIG
from safetensors.numpy import save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from exporter.export import ExportOptions, export
from runtime.bundle.bundle import open_bundle
from runtime.embedder import Embedder
from runtime.errors import BundleError, CheckpointError, OptionError, RequestError, UnsupportedError
from runtime.llm import LLM
from runtime.reranker import Reranker

from .conftest import add_modules

IDS = [[5, 9, 200, 17, 4], [77], list(range(10, 75))]


def hidden_of(folder, ids):
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()


POOLED = {
    "lasttoken": lambda x: x[-1],
    "cls": lambda x: x[0],
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / np.sqrt(len(x)),
    "weightedmean": lambda x: np.average(x, axis=0, weights=np.arange(1, len(x) + 1)),
}


@pytest.mark.parametrize("kind", POOLED)
def test_pooling_is_sentence_transformers(kind, checkpoint, exported):
    folder = add_modules(checkpoint(), "Pooling", Pooling={"embedding_dimension": 64, "pooling_mode": kind})
    exported(folder, verify="none")
    with Embedder(folder.parent / "bundle") as embedder:
        expected = np.stack([POOLED[kind](hidden_of(folder, ids)) for ids in IDS])
        np.testing.assert_allclose(embedder.embed(IDS), expected, atol=2e-5)


def test_dense_layers_and_several_poolings_side_by_side(checkpoint, exported):
    modes = {"embedding_dimension": 64, "pooling_mode": ["lasttoken", "mean"]}
    dense = {
        "in_features": 128,
        "out_features": 24,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    folder = add_modules(checkpoint(), "Pooling", "Dense", "Normalize", Pooling=modes, Dense=dense)
    rng = np.random.default_rng(3)
    weight, bias = (rng.standard_normal(shape).astype(np.float32) / 8 for shape in ((24, 128), (24,)))
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    assert exported(folder).manifest.verification.method == "transformers"
    states = hidden_of(folder, IDS[0])
    row = np.tanh(weight @ np.concatenate([states[-1], states.mean(0)]) + bias)
    with Embedder(folder.parent / "bundle") as embedder:
        np.testing.assert_allclose(embedder.embed([IDS[0]])[0], row / np.linalg.norm(row), atol=2e-5)


@pytest.mark.parametrize(
    ("said", "taken", "refused"),
    [
        ({"matryoshka_dimensions": [16, 32]}, 16, 17),
        ({"is_matryoshka": False}, 64, 16),
        ({"is_matryoshka": True}, 17, 65),
    ],
)
def test_vectors_are_cut_to_the_sizes_that_the_files_name(said, taken, refused, checkpoint, exported):
    folder = add_modules(checkpoint(**said), "Pooling", "Normalize")
    exported(folder, verify="none")
    with Embedder(folder.parent / "bundle") as embedder:
        assert embedder.embed([IDS[0]], dimensions=taken).shape == (1, taken)
        with pytest.raises(RequestError, match="dimensions must be"):
            embedder.embed([IDS[0]], dimensions=refused)


@pytest.mark.parametrize(
    "said", [{"matryoshka_dimensions": [0]}, {"matryoshka_dimensions": [65]}, {"matryoshka_dimensions": []},
             {"matryoshka_dimensions": [16], "is_matryoshka": False}, {"is_matryoshka": "yes"}],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(said, checkpoint, exported):
    with pytest.raises(CheckpointError, match="matryoshka"):
        exported(add_modules(checkpoint(**said), "Pooling", "Normalize"), verify="none")


def test_the_manifest_has_what_the_files_say(checkpoint, exported):
    folder = add_modules(checkpoint(), "Pooling", "Normalize")
    task = exported(folder, verify="none").manifest.task
    assert (task.pooling, task.normalized, task.max_tokens, task.width) == (("lasttoken",), True, 128, 64)
    assert task.prompts["query"] == "Instruct: find\nQuery:"
    assert open_bundle(folder.parent / "bundle").manifest.graphs.decode is None


def test_sentence_transformers_gives_the_same_vectors(checkpoint, exported):
    library = pytest.importorskip("sentence_transformers")
    folder = add_modules(checkpoint(), "Pooling", "Normalize")
    exported(folder)
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    texts = ["Hello world", "the other one in the rain"]
    with Embedder(folder.parent / "bundle") as embedder:
        expected = model.encode(texts, prompt_name="query", normalize_embeddings=True)
        np.testing.assert_allclose(embedder.embed(texts, prompt_name="query"), expected, atol=2e-5)


def test_a_classifier_is_transformers(checkpoint, exported):
    folder = checkpoint(3, id2label={"0": "sad", "1": "calm", "2": "glad"})
    task = exported(folder, "score", verify="none").manifest.task
    assert (task.labels, task.activation, task.pair_template) == (("sad", "calm", "glad"), "softmax", None)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with Reranker(folder.parent / "bundle") as reranker, torch.inference_mode():
        expected = model(input_ids=torch.tensor([IDS[2]])).logits.softmax(-1)[0].tolist()
        assert list(reranker.classify([IDS[2]])[0].values()) == pytest.approx(expected, abs=1e-5)


def test_answer_tokens_are_the_difference_of_their_logits(checkpoint, exported):
    folder = checkpoint()
    template = "<Q> {query} <D> {document} ?"
    exported(folder, "score", score_tokens=("y", "n"), pair_template=template, verify="none")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with Reranker(folder.parent / "bundle") as reranker, torch.inference_mode():
        encode = reranker.encoder.tokenizer.encode
        logits = model(input_ids=torch.tensor([encode("<Q> what <D> that ?")])).logits[0, -1]
        (yes,), (no,) = encode("y"), encode("n")
        expected = torch.sigmoid(logits[yes] - logits[no]).item()
        assert reranker.score([("what", "that")]) == [pytest.approx(expected, abs=1e-5)]


def yes_or_no(folder):
    """A checkpoint that is asked for one token, as sentence-transformers describes it."""
    chat = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[answer]"
    names = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": chat}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    model = {"prompts": {"search": "Find it"}, "default_prompt_name": "search", "model_type": "CrossEncoder"}
    add_modules(folder, "LogitScore", LogitScore={"true_token_id": 90, "false_token_id": 80}, model=model)
    forward = {"method": "forward", "method_output_name": "logits"}
    modality = {"text": forward, "message": forward | {"format": "flat"}}
    settings = {"transformer_task": "text-generation", "modality_config": modality}
    settings["module_output_name"] = "causal_logits"
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


def test_pairs_go_through_the_checkpoints_own_chat_template(checkpoint, exported):
    task = exported(yes_or_no(checkpoint()), "score").manifest.task
    assert task.pair_template == "[system]{instruction}[query]{query}[document]{document}[answer]"
    assert task.instruction == "Find it"


def test_sentence_transformers_gives_the_same_scores(checkpoint, exported):
    library = pytest.importorskip("sentence_transformers")
    folder = yes_or_no(checkpoint())
    exported(folder, "score", verify="none")
    pairs = [("what is it", "the rain"), ("what is it", "an other thing")]
    expected = library.CrossEncoder(str(folder), device="cpu", local_files_only=True).predict(pairs)
    with Reranker(folder.parent / "bundle") as reranker:
        np.testing.assert_allclose(reranker.score(pairs), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("kinds", "settings", "words"),
    [
        (("Pooling", "LSTM"), {}, "the module LSTM is not supported"),
        (("Normalize", "Pooling"), {}, "in this order"),
        (("Pooling",), {"Pooling": {"pooling_mode": "mean", "include_prompt": False}}, "include_prompt"),
        (("Pooling",), {"Pooling": {"pooling_mode": "lasttoken", "pooling_head": 3}}, "pooling_head"),
        (("Pooling",), {"model": {"truncate_dim": 32}}, "truncate_dim"),
        (("Pooling",), {"model": {"default_prompt_name": "other"}}, "is none of the prompts"),
        (("LogitScore",), {"LogitScore": {"true_token_id": 3}}, "--task score"),
    ],
)
def test_what_is_there_and_cannot_be_used_is_refused(kinds, settings, words, checkpoint, exported):
    folder = add_modules(checkpoint(), *kinds, **settings)
    with pytest.raises(CheckpointError, match=words):
        exported(folder)
    assert not (folder.parent / "bundle").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "embed"}, "--pooling"),
        ({"task": "score"}, "--score-tokens"),
        ({"task": "score", "score_tokens": ("y", "n")}, "--pair-template"),
        ({"task": "score", "score_tokens": ("yes please",), "pair_template": "{query}{document}"}, "not one token"),
        ({"task": "score", "score_tokens": ("y",), "pair_template": "{query}"}, "document"),
    ],
)
def test_what_no_file_says_has_to_be_said(options, words, checkpoint, exported):
    with pytest.raises(OptionError, match=words):
        exported(checkpoint(), **options)


@pytest.mark.parametrize("key", [{"is_causal": False}, {"auto_map": {"AutoModel": "modeling_x.X"}}])
def test_models_that_may_attend_both_ways_are_refused(key, checkpoint, exported):
    with pytest.raises(UnsupportedError, match="both directions"):
        exported(add_modules(checkpoint(**key), "Pooling"))


def test_a_classifier_does_not_generate_and_an_embedder_does_not_chat(checkpoint, exported):
    folder = checkpoint(2)
    with pytest.raises(UnsupportedError, match="--task score"):
        exported(folder, "generate")
    exported(folder, "score", verify="self-consistency")
    with pytest.raises(BundleError, match="onnxlm rerank"):
        LLM(folder.parent / "bundle")
    with pytest.raises(BundleError, match="not an embedding model"):
        Embedder(folder.parent / "bundle")


def test_a_generating_bundle_does_not_embed(tiny_bundle):
    with pytest.raises(BundleError, match="--task embed"):
        Embedder(tiny_bundle)


@pytest.mark.parametrize("options", [{"pooling": "mean"}, {"score_tokens": ("y",)}])
def test_options_of_another_task_are_refused(options):
    with pytest.raises(OptionError, match="belongs to task"):
        ExportOptions(**options)


def test_float16_is_close(checkpoint, tmp_path):
    folder = add_modules(checkpoint(), "Pooling", "Normalize")
    found = export(folder, tmp_path / "half", ExportOptions(task="embed", dtype="float16"))
    assert found.manifest.verification.max_difference < 0.01


def test_the_context_bounds_a_text(checkpoint, exported):
    folder = add_modules(checkpoint(max_position_embeddings=65), "Pooling")
    assert exported(folder, verify="none").manifest.task.max_tokens == TINY_CONFIG["max_position_embeddings"] - 191
    with Embedder(folder.parent / "bundle") as embedder:
        whole = list(range(10, 75))
        np.testing.assert_array_equal(embedder.embed([whole])[0], embedder.embed([whole, whole[:20]])[0])


def test_the_end_token_of_the_settings_stands_behind_every_text(checkpoint, exported):
    folder = add_modules(checkpoint(), "Pooling", "Normalize")
    names = json.loads((folder / "tokenizer_config.json").read_text()) | {"add_eos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    exported(folder, verify="none")
    with Embedder(folder.parent / "bundle") as embedder:
        tokenizer, reader = embedder.encoder.tokenizer, embedder.encoder.reader
        end = tokenizer.id_of("<|im_end|>")
        assert tokenizer.encode("hello") == [*tokenizer.encode("hello", add_special_tokens=False), end]
        cut = reader.ids("hello " * 200, truncate=True)
        assert (len(cut), cut[-1]) == (128, end)
