"""The folder: every way in which a bundle arrives broken, each with words of its own."""

import json
import os
from pathlib import Path

import pytest

from runtime.bundle.bundle import new_bundle, open_bundle, sha256_of, write_manifest
from runtime.bundle.manifest import parse_manifest
from runtime.errors import BundleError, FormatVersionError, IntegrityError, ManifestError


def test_a_whole_bundle_opens(folder):
    bundle = open_bundle(folder, verify=True)
    assert bundle.path("weights.bin").read_bytes() == b"content of weights.bin"
    assert not bundle.has("chat_template.jinja")


def test_progress_adds_up_to_the_bytes_hashed(folder):
    seen: list[int] = []
    bundle = open_bundle(folder, verify=True, progress=seen.append)
    assert sum(seen) == sum(entry.size for entry in bundle.manifest.files.values())


def test_the_hash_is_sha256(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_of(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def edit(folder: Path, change) -> None:
    """Rewrite manifest.json through `change`, which edits the parsed JSON in place."""
    document = json.loads((folder / "manifest.json").read_text())
    change(document)
    (folder / "manifest.json").write_text(json.dumps(document))


def truncate(path: Path, size: int = 3) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def link_out(folder: Path) -> None:
    outside = folder.parent / "outside.bin"
    (folder / "weights.bin").rename(outside)
    (folder / "weights.bin").symlink_to(outside)


def loop(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to("weights.bin")


def pipe(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    os.mkfifo(folder / "weights.bin")


def manifest_link_out(folder: Path) -> None:
    (folder / "manifest.json").rename(folder.parent / "elsewhere.json")
    (folder / "manifest.json").symlink_to("../elsewhere.json")


def manifest_folder(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()


BREAKAGES = [
    (lambda f: (f / "weights.bin").unlink(), IntegrityError, "weights.bin is missing; the bundle was only half copied"),
    (lambda f: (f / "manifest.json").unlink(), ManifestError, "no manifest.json; this is not a bundle, or it was"),
    (lambda f: truncate(f / "weights.bin"), IntegrityError, "weights.bin has 3 bytes instead of 22"),
    (lambda f: truncate(f / "decode.onnx", 0), IntegrityError, "decode.onnx has 0 bytes"),
    (lambda f: truncate(f / "manifest.json", 700), ManifestError, "manifest.json: "),
    (lambda f: truncate(f / "manifest.json", 0), ManifestError, "Expecting value"),
    (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe{}"), ManifestError, "not UTF-8"),
    (manifest_folder, ManifestError, "no manifest.json"),
    (manifest_link_out, IntegrityError, "manifest.json is a link to .*, outside the bundle"),
    (lambda f: edit(f, lambda d: d.update(format_version=2)), FormatVersionError, "upgrade onnxlm"),
    (lambda f: edit(f, lambda d: d["files"].update({"../x": d["files"]["weights.bin"]})), ManifestError, "plain path"),
    (lambda f: edit(f, lambda d: d["files"].pop("decode.onnx")), IntegrityError, "decode.onnx is not a file of this"),
    (link_out, IntegrityError, "weights.bin is a link to .*, outside the bundle, and is not followed"),
    (loop, IntegrityError, "link to itself|cannot be read"),
    (pipe, IntegrityError, "weights.bin is not a regular file"),
]


@pytest.mark.parametrize(("damage", "kind", "words"), BREAKAGES)
def test_a_damaged_bundle_says_how(folder, damage, kind, words):
    damage(folder)
    with pytest.raises(BundleError, match=words) as caught:
        open_bundle(folder)
    assert type(caught.value) is kind


def test_a_changed_byte_is_found_by_its_hash(folder):
    (folder / "weights.bin").write_bytes(b"content of Weights.bin")
    open_bundle(folder)
    with pytest.raises(IntegrityError, match=r"weights\.bin was altered"):
        open_bundle(folder, verify=True)


@pytest.mark.parametrize("name", ["nothing", "file", "a\x00b", "x" * 5000])
def test_what_is_no_folder_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError):
        open_bundle(tmp_path / name)


def test_an_oversized_manifest_is_not_even_read(folder):
    with (folder / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)  # sparse: takes no room on the disk
    with pytest.raises(ManifestError, match="larger than 16 MiB"):
        open_bundle(folder)


def test_a_link_that_stays_inside_is_followed(folder):
    (folder / "weights.bin").rename(folder / "blob")
    (folder / "weights.bin").symlink_to("blob")
    assert open_bundle(folder, verify=True).path("weights.bin").read_bytes() == b"content of weights.bin"


def write(target: Path, example) -> None:
    for name in example["files"]:
        (target / name).write_bytes(b"1")
    write_manifest(target, parse_manifest(json.dumps(example)))


def test_a_bundle_appears_when_it_is_complete(example, tmp_path):
    with new_bundle(tmp_path / "deep" / "new") as folder:
        write(folder, example)
        assert not (tmp_path / "deep" / "new").exists()
    assert open_bundle(tmp_path / "deep" / "new", verify=True)


def fail_to_write(target: Path, example, **options) -> None:
    with new_bundle(target, **options) as folder:
        write(folder, example)
        raise KeyboardInterrupt


def test_a_failed_write_leaves_nothing(example, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fail_to_write(tmp_path / "new", example)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_bundle_is_replaced_only_on_request(example, folder):
    with pytest.raises(BundleError, match="--overwrite"), new_bundle(folder):
        pass
    with new_bundle(folder, overwrite=True) as new:
        write(new, example)
    assert open_bundle(folder).path("weights.bin").read_bytes() == b"1"
    assert [path.name for path in folder.parent.iterdir()] == ["bundle"]


def test_a_failed_overwrite_keeps_the_old_bundle(example, folder):
    with pytest.raises(KeyboardInterrupt):
        fail_to_write(folder, example, overwrite=True)
    assert open_bundle(folder, verify=True)


def test_a_folder_that_is_no_bundle_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with (
        pytest.raises(BundleError, match=r"holds no manifest\.json, so onnxlm did not write it"),
        new_bundle(tmp_path, overwrite=True),
    ):
        pass
    assert (tmp_path / "thesis.txt").exists()
