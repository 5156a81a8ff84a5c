"""A checkpoint is made into a bundle once, and found again by what it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from exporter.model_cache import cached_bundle, list_cached, remove_cached
from runtime.cli.main import main
from runtime.cli.source import bundle_of, is_checkpoint, name_of
from runtime.errors import BundleError, CheckpointError
from runtime.host.made_bundles import recall, remember


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONNXLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def checkpoint(make_checkpoint) -> Path:
    return make_checkpoint()


def test_the_second_time_nothing_is_made(checkpoint):
    said = []
    first, second = (cached_bundle(checkpoint, announce=said.append) for _ in range(2))
    assert first == second
    assert len(said) == 1
    assert [model.folder for model in list_cached()] == [first]


def test_what_was_made_is_found_without_the_exporter(checkpoint, cache):
    done = CliRunner().invoke(main, ["run", str(checkpoint), "hello", "--raw", "--max-tokens", "1"])
    assert done.exit_code == 0, done.output
    code = (
        "import sys; sys.modules['exporter'] = None; from runtime.cli.source import bundle_of; "
        f"print(bundle_of({str(checkpoint)!r}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == str(list_cached()[0].folder), found.stderr


def test_what_was_noted_of_a_checkpoint_holds_as_long_as_its_files_do(checkpoint):
    bundle = bundle_of(checkpoint)
    assert recall(checkpoint) == bundle
    os.utime(checkpoint / "model.safetensors", ns=(1, 1))
    assert recall(checkpoint) is None
    remember(checkpoint, bundle)
    assert recall(checkpoint) == bundle
    remove_cached(bundle.name)
    assert recall(checkpoint) is None


def test_a_damaged_note_is_not_believed(checkpoint, cache):
    bundle = bundle_of(checkpoint)
    (note,) = (cache / ".made").iterdir()
    for content in (b"", b"..", b"../elsewhere", b"gone-0123", b"\xff\0"):
        note.write_bytes(content)
        assert recall(checkpoint) is None
        assert bundle_of(checkpoint) == bundle


def test_a_changed_checkpoint_is_another_model(checkpoint):
    first = cached_bundle(checkpoint)
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert cached_bundle(checkpoint) != first


def test_run_answers_a_checkpoint(checkpoint):
    done = CliRunner().invoke(main, ["run", str(checkpoint), "hello", "--raw", "--max-tokens", "3", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["finish_reason"] in ("length", "stop")


def test_two_processes_make_one_bundle(checkpoint, cache):
    code = f"from exporter.model_cache import cached_bundle; print(cached_bundle({str(checkpoint)!r}))"
    environment = {**os.environ, "ONNXLM_CACHE": str(cache)}
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=-1, env=environment, text=True) for _ in range(2)]
    printed = {run.communicate(timeout=120)[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    assert len(printed) == 1


def test_a_name_without_its_hash_removes_all_of_that_name(checkpoint):
    folder = cached_bundle(checkpoint)
    assert [model.folder for model in remove_cached(checkpoint.name)] == [folder]
    assert not folder.exists()
    with pytest.raises(BundleError, match="holds: nothing"):
        remove_cached(checkpoint.name)


def test_what_is_nothing_is_refused_with_what_is_accepted(tmp_path):
    with pytest.raises(CheckpointError, match=r"Give a bundle, a \.gguf file"):
        cached_bundle(tmp_path / "missing.gguf")
    with pytest.raises(CheckpointError, match="not a hub id"):
        cached_bundle("hf:just-a-name")


def test_sources_are_told_apart_by_what_they_hold(checkpoint, tiny_bundle):
    assert [is_checkpoint(source) for source in (checkpoint, tiny_bundle, "hf:a/b", "x.gguf", "x")] == [
        True, False, True, True, False,
    ]  # fmt: skip
    assert [name_of(source) for source in ("hf:org/name@v1", "a/b.gguf", "a/b")] == ["name", "b", "b"]


def test_commands_for_bundles_say_how_a_checkpoint_becomes_one(checkpoint):
    done = CliRunner().invoke(main, ["inspect", str(checkpoint)])
    assert done.exit_code == 1
    assert "is a checkpoint, not a bundle. `onnxlm export" in done.output
