"""Embeddings, rerankers and classifiers over HTTP, by the clients of OpenAI and Ollama."""

import json
import struct
from base64 import b64decode

import httpx
import numpy as np
import openai
import pytest
from conftest import TINY_CONFIG, llama_tensors, write_checkpoint

from exporter.export import ExportOptions, export
from runtime import EngineOptions
from runtime.client import Model
from runtime.embedder import Embedder
from runtime.encoder.model import Encoder
from runtime.reranker import Reranker
from runtime.server.options import ServerOptions

from .conftest import running


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    checkpoint = write_checkpoint(folder / "checkpoint", TINY_CONFIG, llama_tensors(TINY_CONFIG))
    export(checkpoint, folder / "embedder", ExportOptions(task="embed", pooling="lasttoken", verify="none"))
    pairs = {"score_tokens": ("y", "n"), "pair_template": "{query} | {document} ?"}
    export(checkpoint, folder / "reranker", ExportOptions(task="score", verify="none", **pairs))
    tensors = llama_tensors(TINY_CONFIG) | {"score.weight": np.ones((2, 64), np.float32) * [[1], [-1]]}
    tensors["score.weight"] = tensors["score.weight"].astype(np.float32)
    config = TINY_CONFIG | {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}
    export(write_checkpoint(folder / "labels", config, tensors), folder / "classifier",
           ExportOptions(task="score", verify="none"))  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def server(bundles, chat_bundle):
    model = Model(chat_bundle, "cpu", EngineOptions(max_concurrency=4, threads=1))
    kinds = {"embedder": "embed", "reranker": "score", "classifier": "score"}
    encoders = {name: Encoder(bundles / name, kind) for name, kind in kinds.items()}
    with running({"tiny": model}, ServerOptions(max_body=1 << 20), encoders) as server:
        yield server
    for each in (model, *encoders.values()):
        each.close()


@pytest.fixture(scope="module")
def embedder(bundles):
    with Embedder(bundles / "embedder") as embedder:
        yield embedder


def test_openai_s_client_gets_the_vectors_of_python(server, embedder):
    with server.client() as client:  # which asks for base64 by itself
        found = client.embeddings.create(model="embedder", input=["hello", "the rain"])
        ids = client.embeddings.create(model="embedder", input=[[5, 6, 7], [8]], encoding_format="float")
    np.testing.assert_array_equal([one.embedding for one in found.data], embedder.embed(["hello", "the rain"]))
    np.testing.assert_array_equal(np.float32([one.embedding for one in ids.data]), embedder.embed([[5, 6, 7], [8]]))
    assert ids.usage.prompt_tokens == ids.usage.total_tokens == 4
    assert [one.index for one in found.data] == [0, 1]


def test_dimensions_prompts_and_base64(server, embedder):
    body = {"input": "hello", "dimensions": 8, "prompt": "Query: ", "encoding_format": "base64", "user": "me"}
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body).json()
    found = struct.unpack("<8f", b64decode(answer["data"][0]["embedding"]))
    np.testing.assert_array_equal(np.float32(found), embedder.embed("hello", prompt="Query: ", dimensions=8))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": [""]}, "input"), ({"input": [9999]}, "input"),
        ({"input": [1, "a"]}, "input"), ({"input": ["x"] * 2049}, "input"), ({"dimensions": 65}, "dimensions"),
        ({"dimensions": 0}, "dimensions"), ({"encoding_format": "hex"}, "encoding_format"), ({"inputs": "a"}, "inputs"),
        ({"prompt_name": "nothing"}, "prompt_name"), ({"model": "tiny"}, "model"), ({"model": "reranker"}, "model"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(server, change, param):
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": "embedder", "input": "hello"} | change)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in (param, f"{param}[0]", None)
    assert param in answer.text


def test_a_long_text_and_an_unknown_model(server):
    with server.client() as client:
        with pytest.raises(openai.BadRequestError, match="at most 256") as long:
            client.embeddings.create(model="embedder", input="hello " * 300)
        assert long.value.code == "context_length_exceeded"
        assert client.embeddings.create(model="embedder", input="hello " * 300, extra_body={"truncate": True}).data
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="nothing", input="hello")
        with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
            client.chat.completions.create(model="embedder", messages=[{"role": "user", "content": "Hi"}])
        assert {model.id for model in client.models.list()} == {"tiny", "embedder", "reranker", "classifier"}


def test_ollama_s_client_embeds(server, embedder):
    ollama = pytest.importorskip("ollama")
    with ollama.Client(host=server.url) as client:
        found = client.embed("embedder:latest", ["hello", "the rain"])
        cut = client.embed("embedder", "hello " * 300)
        old = client.embeddings("embedder", "hello")
        assert {one.model for one in client.list().models} == {"tiny", "embedder", "reranker", "classifier"}
        assert client.show("embedder").capabilities == ["embedding"]
        with pytest.raises(ollama.ResponseError, match="at most 256"):
            client.embed("embedder", "hello " * 300, truncate=False)
    np.testing.assert_array_equal(np.float32(found.embeddings), embedder.embed(["hello", "the rain"]))
    np.testing.assert_array_equal(np.float32(old.embedding), embedder.embed("hello"))
    assert len(cut.embeddings) == 1
    assert found.prompt_eval_count > 1


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_as_in_python(server, bundles, path):
    documents = ["apples", {"text": "pears"}, "the rain"]
    body = {"model": "reranker", "query": "fruit", "documents": documents, "top_n": 2}
    answer = httpx.post(server.url + path, json=body).json()
    with Reranker(bundles / "reranker") as reranker:
        expected = reranker.rerank("fruit", ["apples", "pears", "the rain"], top_n=2)
    found = [(one["index"], one["relevance_score"], one["document"]["text"]) for one in answer["results"]]
    assert found == [(one.index, pytest.approx(one.score), one.document) for one in expected]


def test_scores_and_labels(server, bundles):
    body = {"model": "reranker", "text_1": "fruit", "text_2": ["apples", "pears"]}
    answer = httpx.post(f"{server.url}/score", json=body).json()
    labels = httpx.post(f"{server.url}/classify", json={"model": "classifier", "input": "hello"}).json()["data"][0]
    with Reranker(bundles / "reranker") as reranker:
        expected = reranker.score([("fruit", "apples"), ("fruit", "pears")])
    assert [one["score"] for one in answer["data"]] == pytest.approx(expected)
    assert labels["label"] in ("a", "b")
    assert sum(labels["probs"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rerank", {"model": "reranker", "query": "a", "documents": []}),
        ("/rerank", {"model": "reranker", "query": "a", "documents": [{"title": "b"}]}),
        ("/rerank", {"model": "reranker", "query": "a", "documents": ["b"], "top_n": 0}),
        ("/rerank", {"model": "reranker", "query": "a", "documents": ["b"], "instruction": "c"}),
        ("/rerank", {"model": "classifier", "query": "a", "documents": ["b"]}),
        ("/score", {"model": "reranker", "text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/classify", {"model": "embedder", "input": "a"}),
    ],
)
def test_bad_pairs_are_refused(server, path, body):
    answer = httpx.post(server.url + path, json=body)
    assert answer.status_code == 400
    assert json.loads(answer.content)["error"]["message"]


def test_the_metrics_count_texts(server):
    httpx.post(f"{server.url}/v1/embeddings", json={"input": "hello"})
    text = httpx.get(f"{server.url}/metrics").text
    assert 'onnxlm_prompt_tokens_total{model_name="embedder"}' in text
    assert 'onnxlm_http_requests_total{path="/v1/embeddings",status="200"}' in text
