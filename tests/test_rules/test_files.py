"""Files and functions stay small enough to be read."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ["exporter", "models", "quantizer", "runtime"]
SOURCES = sorted(path for folder in [*PACKAGES, "tests"] for path in (ROOT / folder).rglob("*.py"))
MAX_LINES, MAX_BYTES, MAX_FUNCTION, SHARE = 400, 1_000_000, 40, 0.9
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "base"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_source_file_is_long():
    long = {relative(path): count for path in SOURCES if (count := len(path.read_text().splitlines())) > MAX_LINES}
    assert long == {}, f"split these at a noun of the domain: {long}"


def test_no_file_is_big():
    folders = [ROOT / name for name in [*PACKAGES, "tests", ".ci"]]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert [relative(path) for path in files if path.stat().st_size > MAX_BYTES] == []


def test_no_file_has_a_name_that_says_nothing():
    assert [relative(path) for path in SOURCES if path.stem.removeprefix("test_") in VAGUE] == []


def test_tests_are_no_packages():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def function_lengths(package: str) -> list[int]:
    trees = [ast.parse(path.read_text()) for path in (ROOT / package).rglob("*.py")]
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sorted((n.end_lineno or n.lineno) - n.lineno + 1 for n in functions)


@pytest.mark.parametrize("package", PACKAGES)
def test_nine_functions_of_ten_are_short(package):
    lengths = function_lengths(package)
    assert lengths[int(len(lengths) * SHARE)] < MAX_FUNCTION
    assert lengths[len(lengths) // 2] <= 12
