"""`onnxlm quantize CHECKPOINT`: one command, the same bytes as two."""

from click.testing import CliRunner

from quantizer.cli.source import float_bundle
from runtime.cli.main import main


def call(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_one_command_makes_what_two_make(make_checkpoint, tmp_path):
    source, float_bundle = make_checkpoint(), tmp_path / "float"
    options = ["--bits", "4", "--group-size", "32"]
    assert call("export", source, "-o", float_bundle, "--verify", "none").exit_code == 0
    assert call("quantize", float_bundle, "-o", tmp_path / "two", *options).exit_code == 0
    done = call("quantize", source, "-o", tmp_path / "one", *options)
    assert done.exit_code == 0, done.output
    for name in ("weights.bin", "prefill.onnx", "decode.onnx"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["float", "one", "two"]


def test_the_float_bundle_is_made_once(make_checkpoint, tmp_path):
    source, said = make_checkpoint(), []
    (tmp_path / "float-of-another").mkdir()
    first, again = (float_bundle(source, tmp_path, lambda *step: said.append(step[0])) for _ in range(2))
    assert first == again
    assert said.count("writing weights") > 0
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
