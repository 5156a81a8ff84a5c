"""Our package names are common words: what happens when the user's folder holds a file of that name."""

import subprocess
import sys
from pathlib import Path

import pytest

from exporter._own_names import require_own

ROOT = Path(__file__).parents[2]


def test_our_own_packages_pass():
    require_own("runtime", "models", "quantizer", "exporter")


def test_a_name_that_is_not_ours_is_refused():
    with pytest.raises(ImportError, match=r"`import json` finds .*json.*hides ours"):
        require_own("json")


def run_in(folder: Path, code: str) -> subprocess.CompletedProcess:
    """Run code as a user does from their own folder, which Python puts first on its path."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["models.py", "runtime.py", "models/__init__.py"])
def test_a_users_file_in_the_way_is_named(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    done = run_in(tmp_path, "import exporter")
    assert done.returncode == 1
    assert f"finds {tmp_path / name}" in done.stderr
