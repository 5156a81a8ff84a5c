"""The workflows are what GitHub reads, and give away nothing; the wheel that they build installs everywhere."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def program(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{Path(sys.prefix, 'bin')}") or shutil.which(name)
    return found or pytest.skip(f"{name} is not installed")


def test_the_workflows_fit_github_s_schema():
    files = map(str, WORKFLOWS.iterdir())
    command = [program("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_workflows_have_no_known_weakness():
    command = [program("zizmor"), "--offline", "--config", str(WORKFLOWS.parent / "zizmor.yml"), str(WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["test.yml", "publish.yml"])
def test_each_system_of_the_readme_is_in_the_matrix(name):
    text = (WORKFLOWS / name).read_text(encoding="utf-8")
    assert all(system in text for system in ("ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "windows-latest"))


def test_extras_and_folders_of_the_workflows_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in WORKFLOWS.iterdir():
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"(?:onnxlm|-e \"\.)\[([\w,]+)\]", text)
        assert {extra for group in named for extra in group.split(",")} <= extras.keys()
        assert all((ROOT / folder).is_dir() for folder in re.findall(r"tests/\w+", text))


def test_versions_are_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
