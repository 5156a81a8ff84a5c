"""The archive for an offline machine: complete, checked, and refused when a byte is not as it was."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime.bundle.edge_archive import requirement
from runtime.cli.main import main


def package(*arguments):
    return CliRunner().invoke(main, ["package", *map(str, arguments)])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """A folder with a file named as our wheel is."""
    folder = tmp_path_factory.mktemp("wheels")
    (folder / "onnxlm-0.1.0-py3-none-any.whl").write_bytes(b"not a wheel")
    return folder


@pytest.fixture
def unpacked(tiny_bundle, wheels, tmp_path) -> Path:
    done = package(tiny_bundle, "--wheels", wheels, "-o", tmp_path / "edge.tar")
    assert done.exit_code == 0, done.output
    with tarfile.open(tmp_path / "edge.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "edge"


def test_it_holds_the_bundle_the_wheels_and_a_script(unpacked, tiny_bundle):
    assert {path.name for path in (unpacked / "bundle").iterdir()} == {path.name for path in tiny_bundle.iterdir()}
    assert (unpacked / "bundle/weights.bin").read_bytes() == (tiny_bundle / "weights.bin").read_bytes()
    assert [path.name for path in (unpacked / "wheels").iterdir()] == ["onnxlm-0.1.0-py3-none-any.whl"]
    assert (unpacked / "install.sh").stat().st_mode & 0o100


def test_every_other_file_has_a_checksum(unpacked):
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=unpacked, capture_output=True, text=True, check=False)
    files = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert done.returncode == 0
    assert {line.removesuffix(": OK") for line in done.stdout.splitlines()} == files - {"SHA256SUMS"}


def install(folder, *arguments):
    return subprocess.run(
        ["sh", folder / "install.sh", *arguments], cwd=folder.parent, capture_output=True, text=True, check=False
    )


def test_a_damaged_archive_installs_nothing(unpacked):
    with (unpacked / "bundle/weights.bin").open("r+b") as file:
        file.write(b"x")
    done = install(unpacked, "target")
    assert done.returncode != 0
    assert "weights.bin" in done.stdout + done.stderr
    assert not (unpacked.parent / "target").exists()


def test_a_folder_of_somebody_else_is_not_touched(unpacked):
    (unpacked.parent / "target").mkdir()
    done = install(unpacked, "target")
    assert (done.returncode, "was not made by this script" in done.stderr) == (1, True)
    assert list((unpacked.parent / "target").iterdir()) == []


@pytest.fixture
def python_without_pip(tmp_path, monkeypatch):
    """A python whose virtual environments are two programs that succeed: what installs is the script's business."""
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
        if [ "$1" = -m ]; then mkdir -p "$3/bin"; printf '#!/bin/sh\\n' | tee "$3/bin/python" > "$3/bin/onnxlm"
        chmod +x "$3/bin/python" "$3/bin/onnxlm"; else exec {sys.executable} "$@"; fi
        """
    )
    python.chmod(0o755)
    monkeypatch.setenv("PYTHON", str(python))


def test_an_upgrade_switches_a_link_and_a_rollback_switches_it_back(unpacked, python_without_pip):
    target, link = unpacked.parent / "target", unpacked.parent / "target" / "current"
    assert install(unpacked, "target").returncode == 0
    first = link.readlink()
    assert "this very archive" in install(unpacked, "target").stderr
    (unpacked / "SHA256SUMS").write_text((unpacked / "SHA256SUMS").read_text() + "\n")  # another version
    done = install(unpacked, "target")
    second = link.readlink()
    assert done.returncode == 0, done.stderr
    assert first != second
    assert len(list((target / second).glob("*/weights.bin"))) == 1
    for expected in (first, second):
        assert install(unpacked, "--rollback", "target").returncode == 0
        assert link.readlink() == expected


def test_a_failed_installation_leaves_the_version_before(unpacked, python_without_pip):
    install(unpacked, "target")
    before = sorted(path.name for path in (unpacked.parent / "target").iterdir())
    with (unpacked / "bundle/weights.bin").open("r+b") as file:
        file.write(b"x")
    assert install(unpacked, "target").returncode != 0
    assert sorted(path.name for path in (unpacked.parent / "target").iterdir()) == before


def test_wheels_come_from_the_archive_alone(unpacked):
    script = unpacked / "install.sh"
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
    assert '--no-index \\\n    --find-links "$here/wheels"' in script.read_text()


def test_an_altered_bundle_is_not_packed(make_bundle, tiny_checkpoint, tmp_path):
    bundle = make_bundle(tiny_checkpoint)
    content = bytearray((bundle / "weights.bin").read_bytes())
    content[5000] ^= 1
    (bundle / "weights.bin").write_bytes(content)
    done = package(bundle, "-o", tmp_path / "x.tar")
    assert done.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_an_archive_is_replaced_only_when_asked_to(tiny_bundle, tmp_path):
    target = tmp_path / "x.tar"
    target.write_text("mine")
    assert "exists already" in package(tiny_bundle, "-o", target).output
    assert package(tiny_bundle, "-o", target, "--overwrite").exit_code == 0
    assert tarfile.is_tarfile(target)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_two_packages_into_one_output(tiny_bundle, tmp_path):
    import fcntl

    with (tmp_path / ".x.tar.partial").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = package(tiny_bundle, "-o", tmp_path / "x.tar")
        assert "another process is writing it" in done.output
        assert [path.name for path in tmp_path.iterdir()] == [".x.tar.partial"]  # the other one's
    assert package(tiny_bundle, "-o", tmp_path / "x.tar").exit_code == 0  # what one that was killed left is no obstacle
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_a_folder_without_our_wheel_is_refused(tiny_bundle, tmp_path):
    done = package(tiny_bundle, "--wheels", tmp_path, "-o", tmp_path / "x.tar")
    assert "no wheel of onnxlm" in done.output


def test_pip_is_given_a_clean_copy_of_the_source(tmp_path):
    assert requirement("cpu", tmp_path) == f"{tmp_path}[serve,cpu]"  # tests run on an editable install
    assert {path.name for path in tmp_path.iterdir()} >= {"runtime", "exporter", "pyproject.toml"}
    assert not list(tmp_path.rglob("__pycache__"))
