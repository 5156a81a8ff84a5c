"""The server and a batch on a local Ray, where Ray is installed."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import runtime
from runtime.errors import MissingDependencyError, OptionError
from runtime.ray.serve import RayOptions, application

SESSION = Path(__file__).with_name("ray_session.py")
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'onnxlm[ray]'")


@pytest.fixture(scope="module")
def result(chat_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    log = folder / "log"
    with log.open("wb") as out:  # a file, not a pipe: Ray's processes may outlive the session for a moment
        done = subprocess.run(
            [sys.executable, SESSION, chat_bundle, folder],
            stdout=out, stderr=out, timeout=280, check=False,
        )  # fmt: skip
    assert done.returncode == 0, log.read_text()[-4000:]
    return json.loads((folder / "result.json").read_text())


@needs_ray
def test_replicas_answer_as_the_engine_does(result, chat_bundle):
    params = runtime.SamplingParams(max_tokens=8, seed=1, temperature=1)
    with runtime.LLM(chat_bundle) as llm:
        alone = llm.chat([{"role": "user", "content": "Hi"}], params).text
    assert result["answer"] == result["stream"] == alone
    assert result["health"] == 200


@needs_ray
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_dataset_is_answered_row_by_row(result, chat_bundle, kind):
    rows = result[kind]
    with runtime.LLM(chat_bundle) as llm:
        alone = llm.chat(
            [{"role": "user", "content": "number 7"}], runtime.SamplingParams(max_tokens=5, seed=7, temperature=1)
        )
    assert [row["id"] for row in rows] == list(range(10))
    assert (rows[7]["answer"], rows[7]["generated_tokens"]) == (alone.text, len(alone.token_ids))
    assert "temperature must be" in rows[3]["error"]
    assert [row["id"] for row in rows if row["error"]] == [3]


@pytest.mark.parametrize("arguments", [{}, {"bundle": "x", "replicas": "2"}, {"bundle": "x", "max_replicas": "0"}])
def test_arguments_are_checked(arguments):
    with pytest.raises(OptionError):
        RayOptions.parse(arguments)


def test_words_become_numbers():
    options = RayOptions.parse({"bundle": "x", "max_concurrency": "8", "gpus": "1"})
    assert (options.max_concurrency, options.gpus, options.bundle) == (8, 1, "x")


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_error_says_what_to_install():
    with pytest.raises(MissingDependencyError, match=r"onnxlm\[ray\]"):
        application({"bundle": "x"})
