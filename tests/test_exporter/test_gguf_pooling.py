"""Embedding models as GGUF files: pooling_type says what modules.json says in a folder."""

import numpy as np
import pytest

from exporter.export import ExportOptions, export
from runtime.embedder import Embedder
from runtime.errors import OptionError, UnsupportedError
from runtime.reranker import Reranker

TEXTS = ["hello", "the rain in spain", "x"]


def vectors(source, target, **options):
    export(source, target, ExportOptions(task="embed", verify="none", **options))
    with Embedder(target) as embedder:
        return embedder.embed(TEXTS)


@pytest.mark.parametrize(("stated", "pooling"), [(1, "mean"), (3, "lasttoken"), (2, "cls")])
def test_vectors_are_those_of_the_folder(make_gguf, tmp_path, stated, pooling):
    folder, file = make_gguf(metadata={"llama.pooling_type": stated})
    found = vectors(file, tmp_path / "gguf")
    np.testing.assert_allclose(found, vectors(folder, tmp_path / "folder", pooling=pooling), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_transformers_reads_the_same_file(make_gguf, tmp_path):
    _, file = make_gguf(metadata={"llama.pooling_type": 3})
    report = export(file, tmp_path / "bundle", ExportOptions(task="embed"))
    assert report.manifest.verification.method == "transformers"
    assert report.manifest.verification.max_difference < 1e-5


def test_a_reranker_scores_by_two_tokens(make_gguf, tmp_path):
    options = ExportOptions(task="score", score_tokens=("a", "b"), pair_template="{query}{document}")
    report = export(make_gguf()[1], tmp_path / "bundle", options)
    assert report.manifest.verification.method == "transformers"
    with Reranker(tmp_path / "bundle") as reranker:
        assert 0 < reranker.score([("x", "hello")])[0] < 1


def test_a_type_without_pooling_needs_the_option(make_gguf, tmp_path):
    _, file = make_gguf(metadata={"llama.pooling_type": 0})
    with pytest.raises(OptionError, match="--pooling"):
        vectors(file, tmp_path / "bundle")
    assert vectors(file, tmp_path / "bundle", pooling="mean").shape == (3, 64)


def test_what_contradicts_the_file_is_refused(make_gguf, tmp_path):
    _, file = make_gguf(metadata={"llama.pooling_type": 3})
    with pytest.raises(OptionError, match="contradicts"):
        vectors(file, tmp_path / "bundle", pooling="mean")
    with pytest.raises(UnsupportedError, match="pooling_type describes an embedding model"):
        export(file, tmp_path / "bundle", ExportOptions(task="score", score_tokens=("a", "b"), verify="none"))
    _, rank = make_gguf(metadata={"llama.pooling_type": 4})
    with pytest.raises(UnsupportedError, match="pooling_type = 4"):
        vectors(rank, tmp_path / "bundle")


def test_a_generator_made_of_it_is_told(make_gguf, tmp_path):
    _, file = make_gguf(metadata={"llama.pooling_type": 3})
    report = export(file, tmp_path / "bundle", ExportOptions(verify="none"))
    assert any("pooling_type (lasttoken)" in words and "--task embed" in words for words in report.warnings)
