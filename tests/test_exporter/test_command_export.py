"""`onnxlm export` at the command line."""

import json
import re

from click.testing import CliRunner

from exporter.families import list_families
from models.families.registry import FAMILIES
from runtime.cli.main import main


def run(*arguments):
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


def test_report_as_json(tiny_checkpoint, tmp_path):
    result = run(tiny_checkpoint, "-o", tmp_path / "bundle", "--verify", "self-consistency", "--json")
    report = json.loads(result.stdout)
    assert report["verification"]["method"] == "self-consistency"
    assert report["files"]["weights.bin"] == (tmp_path / "bundle" / "weights.bin").stat().st_size


def test_report_as_text_says_what_was_not_checked(tiny_checkpoint, tmp_path):
    result = run(tiny_checkpoint, "-o", tmp_path / "bundle", "--verify", "none")
    assert result.exit_code == 0
    assert "not verified" in result.stdout


def test_disk_and_memory_are_said_before_and_compared_behind(tiny_checkpoint, tmp_path):
    result = run(tiny_checkpoint, "-o", tmp_path / "bundle", "--verify", "none")
    assert re.match(r"needs about \d MB on disk and [\d.]+ [GM]B of memory\n", result.stderr)
    assert re.search(
        r"MB on disk \(estimated: \d MB\)\n[\d.]+ [GM]B of memory at most, mapped files included", result.stdout
    )


def test_tools_that_cannot_be_called_are_a_warning(make_checkpoint, tmp_path):
    checkpoint = make_checkpoint()
    template = "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (checkpoint / "chat_template.jinja").write_text(template)
    result = run(checkpoint, "-o", tmp_path / "bundle", "--verify", "none")
    assert (result.exit_code, result.stderr.count("warning: Tools: the chat template shows tools")) == (0, 1)


def test_plain_rounding_is_another_method(tiny_checkpoint, tmp_path):
    for method in ("search", "rtn"):
        run(tiny_checkpoint, "-o", tmp_path / method, "--quantize", "int4", "--method", method)
    manifests = [json.loads((tmp_path / method / "manifest.json").read_text()) for method in ("search", "rtn")]
    assert [manifest["quantization"]["recipe"]["method"] for manifest in manifests] == ["search", "rtn"]
    errors = [[tensor["relative_error"] for tensor in m["quantization"]["tensors"]] for m in manifests]
    assert sum(errors[0]) < sum(errors[1])


def test_error_is_one_line_and_exit_code_1(tmp_path):
    result = run(tmp_path / "nothing", "-o", tmp_path / "bundle")
    assert result.exit_code == 1
    assert "no such file or folder" in result.stderr
    assert "Traceback" not in result.stderr


def test_list_names_every_family():
    result = run("--list")
    assert result.exit_code == 0
    assert {line.split()[0] for line in result.stdout.splitlines()[1:]} == set(FAMILIES)


def test_family_table_knows_what_a_family_is():
    mixtral = next(family for family in list_families() if family.model_type == "mixtral")
    assert mixtral.about.startswith("`model_type: mixtral`")
    assert "llama" in next(family for family in list_families() if family.model_type == "llama").gguf
