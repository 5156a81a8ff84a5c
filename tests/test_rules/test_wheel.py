"""What `pip install onnxlm` puts on a machine."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"exporter", "models", "quantizer", "runtime"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel, built from a copy: setuptools leaves folders behind, and takes old ones in."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(target), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return zipfile.ZipFile(next(target.glob("onnxlm-*.whl")))


def test_exactly_four_names_are_installed(wheel):
    top = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES


def test_every_source_file_is_in_it(wheel):
    here = {path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert here <= set(wheel.namelist())


def test_the_page_of_the_server_is_shipped(wheel):
    page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "runtime/server/page").iterdir() if path.is_file()}
    assert len(page) > 5
    assert page <= set(wheel.namelist())


def test_types_and_licence_are_shipped(wheel):
    names = wheel.namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} | {"models/targets/kernels.json"} <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_command_is_onnxlm(wheel):
    entry = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert wheel.read(entry).decode().split("\n")[1] == "onnxlm = runtime.cli.main:main"
