"""The engine of whole texts: the same bits in any company, and what it does with bad texts."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from runtime.cli.main import main
from runtime.embedder import Embedder
from runtime.encoder.batches import batch_with
from runtime.encoder.engine import EncoderEngine
from runtime.engine.scheduling.waiting import WaitingLimit
from runtime.errors import EngineClosedError, ExecutionError, PromptTooLongError, QueueFullError, RequestError
from runtime.reranker import Reranker


@pytest.fixture(scope="module")
def embedder(embedder_bundle):
    with Embedder(embedder_bundle) as embedder:
        yield embedder


@pytest.fixture(scope="module")
def reranker(reranker_bundle):
    with Reranker(reranker_bundle) as reranker:
        yield reranker


def test_a_vector_does_not_depend_on_its_company(embedder):
    rng = np.random.default_rng(1)
    lengths = [*rng.integers(1, 128, 40), 1, 2, 31, 33, 65, 97, 127, 128]
    texts = [rng.integers(4, 300, int(length)).tolist() for length in lengths]
    alone = np.stack([embedder.embed([text])[0] for text in texts])
    np.testing.assert_array_equal(embedder.embed(texts), alone)


def test_batches_hold_texts_of_similar_length():
    lengths = [100, 7, 98, 8, 400, 101, 9, 3000]
    assert sorted(batch_with(0, lengths)) == [0, 2, 5]
    assert sorted(batch_with(1, lengths)) == [1, 3, 6]
    assert batch_with(7, lengths) == [7]
    assert len(batch_with(0, [100] * 50)) == 20


def test_shorter_vectors_have_length_one_again(embedder):
    whole, short = embedder.embed("hello"), embedder.embed("hello", dimensions=16)
    np.testing.assert_allclose(short, whole[:16] / np.linalg.norm(whole[:16]), rtol=1e-6)
    for wrong in (0, 65, True):
        with pytest.raises(RequestError, match="from 1 to 64"):
            embedder.embed("hello", dimensions=wrong)


def test_a_prompt_stands_in_front(embedder):
    expected = embedder.embed("Instruct: find\nQuery:hello")
    np.testing.assert_array_equal(embedder.embed("hello", prompt_name="query"), expected)
    np.testing.assert_array_equal(embedder.embed("hello", prompt="Instruct: find\nQuery:"), expected)
    with pytest.raises(RequestError, match="'query', 'document'"):
        embedder.embed("hello", prompt_name="other")


def test_a_long_text_is_refused_or_cut(embedder):
    long = "hello " * 200
    with pytest.raises(PromptTooLongError, match="at most 128"):
        embedder.embed(["short", long])
    ids = embedder.encoder.tokenizer.encode(long)
    np.testing.assert_array_equal(embedder.embed(long, truncate=True), embedder.embed([ids[:128]])[0])


@pytest.mark.parametrize("wrong", [[""], [[]], [[320]], [[-1]], [[True]], [["a"]], ["\ud800"], [None]])
def test_what_is_no_text_is_refused(wrong, embedder):
    with pytest.raises((RequestError, TypeError)):
        embedder.embed(wrong)


def test_no_texts_give_no_vectors(embedder):
    assert embedder.embed([]).shape == (0, 64)


def test_documents_come_back_best_first(reranker):
    documents = ["apples", "pears", "the rain in the other one"]
    scores = reranker.score([("fruit", document) for document in documents])
    ranked = reranker.rerank("fruit", documents)
    assert [one.index for one in ranked] == sorted(range(3), key=lambda i: -scores[i])
    assert [one.document for one in ranked] == [documents[one.index] for one in ranked]
    assert len(reranker.rerank("fruit", documents, top_n=2)) == 2
    assert reranker.rerank("fruit", []) == []


def test_a_query_may_hold_the_words_of_the_template(reranker):
    pair = reranker.encoder.reader.pair
    assert pair("{document}", "x", "i") == reranker.encoder.tokenizer.encode("i | {document} | x ?")


def test_a_long_document_is_cut_and_its_query_is_not(reranker):
    with pytest.raises(PromptTooLongError):
        reranker.score([("fruit", "hello " * 300)])
    ids = reranker.encoder.reader.pair("fruit", "hello " * 300, truncate=True)
    text = reranker.encoder.tokenizer.decode(ids)
    assert len(ids) <= 256
    assert text.startswith(" | fruit | hello")
    assert text.endswith(" ?")


class Runner:
    """A row is the sum of its ids; texts with a 13 are unlucky."""

    def __init__(self):
        self.batches = []

    def rows(self, texts):
        self.batches.append([len(text) for text in texts])
        if any(666 in text for text in texts):
            raise ValueError("broken")
        return np.array([[np.nan if 13 in text else float(sum(text))] for text in texts], np.float32)


def test_callers_share_batches_and_fail_alone():
    engine = EncoderEngine(runner := Runner(), WaitingLimit(10))
    futures = [engine.submit([[i, i], [i]]) for i in (1, 13, 3)]
    engine.start()
    assert futures[0].result(5).tolist() == [[2.0], [1.0]]
    with pytest.raises(ExecutionError, match="NaN"):
        futures[1].result(5)
    assert futures[2].result(5).tolist() == [[6.0], [3.0]]
    assert max(map(len, runner.batches)) > 2
    assert engine.stats().finished == 3
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.submit([[1]])


def test_a_failure_is_of_its_batch_and_the_queue_is_bounded():
    engine = EncoderEngine(Runner(), WaitingLimit(2))
    bad, cancelled = engine.submit([[666]]), engine.submit([[5] * 100])
    with pytest.raises(QueueFullError):
        engine.submit([[1]])
    assert cancelled.cancel()
    engine.start()
    with pytest.raises(ExecutionError, match="broken"):
        bad.result(5)
    assert engine.submit([[4]]).result(5).tolist() == [[4.0]]
    engine.close()


def test_the_commands_print_and_write(embedder_bundle, reranker_bundle, embedder, tmp_path):
    (tmp_path / "texts.jsonl").write_text('"hello"\n{"text": "the rain"}\n')
    run = CliRunner().invoke
    shown = run(main, ["embed", str(embedder_bundle), "hello"], catch_exceptions=False)
    np.testing.assert_allclose(json.loads(shown.stdout), embedder.embed("hello"), rtol=1e-6)
    output = tmp_path / "out.npy"
    arguments = ["embed", str(embedder_bundle), "--input", str(tmp_path / "texts.jsonl"), "--output", str(output)]
    assert run(main, arguments).exit_code == 0
    np.testing.assert_array_equal(np.load(output), embedder.embed(["hello", "the rain"]))
    ranked = run(main, ["rerank", str(reranker_bundle), "fruit", "apples", "pears", "--json"])
    assert {one["document"] for one in json.loads(ranked.stdout)} == {"apples", "pears"}
    refused = run(main, ["embed", str(reranker_bundle), "hello"])
    assert refused.exit_code == 1
    assert "--task embed" in refused.output


@pytest.mark.parametrize("kind", ["embedder", "reranker"])
@pytest.mark.parametrize(
    "command", ["prepare", "run {} hello", "bench", "plan", "quantize-kv {} -o out", "export {} --format genai -o out"]
)
def test_commands_that_need_text_refuse_the_others(command, kind, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, _, rest = command.partition(" {}")
    bundle = str(request.getfixturevalue(f"{kind}_bundle"))
    refused = CliRunner().invoke(main, [name, bundle, *rest.split()])
    assert (refused.exit_code, "is not possible with it" in refused.output) == (1, True), refused.output
    assert not list(tmp_path.iterdir())
