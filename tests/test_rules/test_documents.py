"""The documents say what is so."""

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

import runtime
from exporter.families import families_as_markdown
from runtime.bundle.manifest import FORMAT_VERSION, parse_manifest
from runtime.bundle.tensor_specs import INPUT_ROLES

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "FAMILIES.md", "FORMAT.md", *PAGES]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text_of(name), re.S)


def test_the_version_is_the_newest_of_the_changelog():
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    assert re.search(r"^## \[(.+?)\]", text_of("CHANGELOG.md"), re.M)[1] == version


def test_the_example_of_the_format_is_a_manifest():
    (example,) = blocks("FORMAT.md", "json")
    assert parse_manifest(example).format_version == FORMAT_VERSION
    assert json.loads(example)["producer"]["name"] == "onnxlm"


def test_the_format_speaks_of_every_key_and_role():
    keys = list(runtime.bundle.manifest.Manifest.__dataclass_fields__)
    assert [key for key in [*keys, *INPUT_ROLES["prefill"]] if f"`{key}" not in text_of("FORMAT.md")] == []


def test_the_format_lists_its_versions():
    assert re.search(rf"^\| {FORMAT_VERSION} \|", text_of("FORMAT.md"), re.M)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_between_documents_lead_somewhere(name):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text_of(name))
    assert [target for target in targets if not (ROOT / name).parent.joinpath(target).exists()] == []


def test_files_named_in_contributing_exist():
    named = re.findall(r"`((?:runtime|exporter|models|quantizer|tests|\.ci)/[\w./]*)`", text_of("CONTRIBUTING.md"))
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_table_of_families_is_up_to_date():
    assert text_of("FAMILIES.md") == families_as_markdown(), "run `make families`"


def test_the_example_of_contributing_is_the_file():
    (code,) = blocks("CONTRIBUTING.md", "python")
    name, _, content = code.partition("\n")
    assert content == text_of(name.removeprefix("# "))
    assert len(content.splitlines()) < 30


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_python_of_the_documents_uses_what_there_is(name):
    for code in blocks(name, "python"):
        tree = ast.parse(code)
        names = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
        assert {n.attr for n in names if n.value.id == "runtime"} <= set(runtime.__all__)
        assert {n.attr for n in names if n.value.id == "llm"} <= set(dir(runtime.LLM)) | set(dir(runtime.AsyncLLM))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_ends_with_what_to_do_next(name):
    assert re.findall(r"^## (.*)$", text_of(name), re.M)[-1] == "What to do next"


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"^ +- (\w+\.md)$", text_of("mkdocs.yml"), re.M))
    assert {Path(page).name for page in PAGES} == listed


def test_the_readme_is_short():
    assert len(text_of("README.md").split()) < 1000


def test_make_targets_of_the_documents_exist():
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.M))
    used = {name for document in DOCUMENTS for name in re.findall(r"^make ([\w-]+)", text_of(document), re.M)}
    assert used
    assert used <= targets


def test_editable_installs_are_understood_by_type_checkers() -> None:
    installs = [line for line in text_of("Makefile").splitlines() if " -e '.[" in line]
    assert len(installs) >= 2
    assert all("--config-settings editable_mode=compat" in line for line in installs)
