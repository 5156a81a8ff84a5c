"""Weights packed once for this processor: the same bits, found again, and never taken where they do not fit."""

import json
import tarfile
from collections.abc import Callable
from mmap import MAP_PRIVATE, mmap
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from runtime import LLM
from runtime.bundle.bundle import Bundle, open_bundle
from runtime.bundle.onnx_outline import read_outline
from runtime.cli.main import main
from runtime.errors import BundleError, IntegrityError, OptionError
from runtime.ort.executor import OnnxExecutor
from runtime.ort.prepared import weights as prepared
from runtime.ort.prepared.background import OFF, prepare_later
from runtime.ort.prepared.mapped_pages import release


@pytest.fixture
def bundle(
    make_bundle: Callable[..., Path], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bundle:
    monkeypatch.setenv("ONNXLM_CACHE", str(tmp_path / "cache"))
    return open_bundle(make_bundle(tiny_checkpoint, quantize="int4"))


def logits(bundle: Bundle, graph: Path | None) -> np.ndarray:
    executor = OnnxExecutor(bundle, slots=1, threads=1, graph=graph)
    ids = np.arange(3, 40)
    found = np.stack([executor.prefill(0, 0, ids).copy(), executor.decode(ids[:1], np.array([37]))[0].copy()])
    executor.close()
    return found


@pytest.mark.parametrize("beside", [False, True])
def test_prepared_weights_are_found_and_give_the_same_bits(bundle: Bundle, beside: bool) -> None:
    assert prepared.find(bundle) is None
    made = prepared.make(bundle, beside=beside)
    assert prepared.find(bundle) == made
    assert made.folder.is_relative_to(bundle.folder) == beside
    assert np.array_equal(logits(bundle, made.graph), logits(bundle, None))
    prepared.verify(made)


def test_a_model_maps_what_was_prepared(bundle: Bundle) -> None:
    made = prepared.make(bundle)
    with LLM(bundle.folder):
        maps = Path("/proc/self/maps").read_text()
    assert str(made.folder / "weights.data") in maps
    with LLM(bundle.folder) as llm:
        (bundle.folder / "weights.bin").read_bytes()
        assert str(bundle.folder / "weights.bin") not in Path("/proc/self/maps").read_text()
        assert llm.generate([5, 6, 7], max_tokens=4, temperature=0, ignore_eos=True).token_ids


@pytest.mark.parametrize("part", ["bundle", "onnxruntime", "processor", "layout"])
def test_what_was_made_of_or_for_another_is_not_taken(bundle: Bundle, part: str) -> None:
    made = prepared.make(bundle)
    about = json.loads((made.folder / "prepared.json").read_text())
    about["key"][part] = 9 if part == "layout" else "another"
    (made.folder / "prepared.json").write_text(json.dumps(about))
    assert prepared.find(bundle) is None


@pytest.mark.parametrize("change", ["cut", "first", "last", "graph", "about", "gone"])
def test_damage_is_seen_and_said_and_the_bundle_runs_without(
    bundle: Bundle, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = prepared.make(bundle)
    name = {"graph": "prefill.onnx", "about": "prepared.json"}.get(change, "weights.data")
    content = bytearray((made.folder / name).read_bytes())
    content[0 if change in ("first", "about") else -1] ^= 1
    (made.folder / name).write_bytes(content[:-1] if change == "cut" else content)
    if change == "gone":
        (made.folder / name).unlink()
    assert prepared.find(bundle) is None
    assert "prepare BUNDLE --overwrite" in caplog.text
    with LLM(bundle.folder) as llm:
        assert llm.generate([5, 6, 7], max_tokens=2).token_ids


def test_every_byte_counts_on_request(bundle: Bundle) -> None:
    made = prepared.make(bundle)
    path = made.folder / "weights.data"
    content = bytearray(path.read_bytes())
    assert len(content) > 64 * 512
    content[512 + 10] ^= 1  # between two blocks of the sample
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"weights\.data was altered"):
        prepared.verify(made)


def test_it_is_not_made_twice_unless_asked_nor_for_gpus(bundle: Bundle) -> None:
    from dataclasses import replace

    prepared.make(bundle)
    with pytest.raises(BundleError, match="exists"):
        prepared.make(bundle)
    prepared.make(bundle, overwrite=True)
    manifest = replace(bundle.manifest, target=replace(bundle.manifest.target, provider="cuda"))
    with pytest.raises(OptionError, match="only CPUs pack weights"):
        prepared.make(replace(bundle, manifest=manifest))


def test_the_command_makes_lists_verifies_and_removes(bundle: Bundle) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["prepare", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    name = str(bundle.folder)
    assert "weights" not in run("--list")
    made = json.loads(run(name, "--json"))
    assert json.loads(run("--list", "--json")) == made
    assert name in run(name, "--verify")
    assert run(name).startswith(made[0]["folder"])  # found, not made again
    run(name, "--beside")
    assert len(json.loads(run(name, "--remove", "--json"))) == 2
    assert prepared.find(bundle) is None
    assert CliRunner().invoke(main, ["prepare", name, "--verify"]).exit_code == 1


def test_a_cache_that_cannot_be_written_is_an_error_in_words(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ONNXLM_CACHE", str(tmp_path / "file"))
    done = CliRunner().invoke(main, ["prepare", str(bundle.folder)])
    assert done.exit_code == 1
    assert str(tmp_path / "file") in done.output
    with LLM(bundle.folder):  # starts without
        pass


def test_a_first_start_packs_for_the_next_one_by_a_process_of_its_own(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepare_later(bundle, least=0) is None  # turned off in these tests
    monkeypatch.delenv(OFF)
    assert prepare_later(bundle) is None  # too small to be worth it
    worker = prepare_later(bundle, least=0, delay=0)
    assert worker is not None
    worker.join(60)
    made = prepared.find(bundle)
    assert made is not None
    assert made.folder == prepared.folders_of(bundle)[1]


def test_nothing_is_packed_where_the_cache_cannot_be_written(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OFF)
    (tmp_path / "file").touch()
    monkeypatch.setenv("ONNXLM_CACHE", str(tmp_path / "file"))
    assert prepare_later(bundle, least=0) is None


def test_what_another_version_left_is_removed(bundle: Bundle) -> None:
    made = prepared.make(bundle)
    old = made.folder.with_name("0" * 16)
    made.folder.rename(old)
    about = json.loads((old / "prepared.json").read_text())
    about["key"]["onnxruntime"] = "1.0"
    (old / "prepared.json").write_text(json.dumps(about))
    made = prepared.make(bundle)
    assert [one.folder for one in prepared.remove_outdated(bundle)] == [old]
    assert prepared.list_prepared() == [made]


def test_pages_that_only_packing_read_are_let_go(bundle: Bundle) -> None:
    made = prepared.make(bundle)
    outline = {one.offset: one for one in read_outline(made.graph).initializers}
    stored = [outline[offset] for offset, _ in made.about.stored]
    assert {one.name for one in outline.values() if one.packed} <= {one.name for one in stored}
    data = (made.folder / "weights.data").read_bytes()
    with made.graph.with_name("weights.data").open("rb") as file, mmap(file.fileno(), 0, MAP_PRIVATE) as mapped:
        assert release(made.folder / "weights.data", [(0, len(data))]) >= len(data) // 2
        assert mapped[:] == data


def test_the_cache_shows_and_removes_packed_weights(bundle: Bundle) -> None:
    made = prepared.make(bundle)
    shown = CliRunner().invoke(main, ["cache", "list"]).output
    assert f"prepared/{made.folder.name}" in shown
    assert made.about.target in shown
    assert CliRunner().invoke(main, ["cache", "remove", f"prepared/{made.folder.name}"]).exit_code == 0
    assert not made.folder.exists()


def test_an_archive_has_weights_for_the_processor_that_it_names(bundle: Bundle, tmp_path: Path) -> None:
    target = tmp_path / "edge.tar"
    run = ["package", str(bundle.folder), "-o", str(target), "--prepared-for"]
    done = CliRunner().invoke(main, [*run, "z80"])
    assert done.exit_code == 1
    assert "packed for no processor" in done.output
    assert CliRunner().invoke(main, [*run, "this-machine"]).exit_code == 0
    with tarfile.open(target) as archive:
        archive.extractall(tmp_path, filter="data")
    prepared.remove(bundle)
    shipped = open_bundle(tmp_path / "edge" / "bundle")
    assert prepared.find(shipped) is not None
