"""What a run will take, before it begins; and what is done where memory or disk are short."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from quantizer.flow import forecast, quantize
from quantizer.forecast.fitting import bits_of_text, fitting
from quantizer.forecast.forecast import Forecast
from quantizer.forecast.phases import Phase
from quantizer.forecast.speed import this_machine
from quantizer.presets import make_recipe
from quantizer.settings import Settings
from runtime.cli.main import main
from runtime.errors import QuantizationError

PHASES = ["writing calibration text", "calibrating", "measuring sensitivity", "quantizing", "evaluating"]


def call(*arguments):
    return CliRunner().invoke(main, ["quantize", *map(str, arguments)])


def test_a_dry_run_says_what_each_phase_takes_and_writes_nothing(tiny_bundle, tmp_path):
    done = call(tiny_bundle, "-o", tmp_path / "q", "--dry-run", "--json")
    told = json.loads(done.stdout)
    assert [phase["name"] for phase in told["phases"]] == PHASES
    assert told["memory_bytes"] == max(phase["memory"] for phase in told["phases"])
    assert 0 < told["seconds"] < 60
    assert not list(tmp_path.iterdir())
    text = call(tiny_bundle, "-o", tmp_path / "q", "--dry-run").stdout
    assert [line.split("  ")[0] for line in text.splitlines()[1:6]] == PHASES


def test_a_checkpoint_is_looked_at_and_not_exported(make_checkpoint, make_bundle, tmp_path):
    source = make_checkpoint()
    told = json.loads(call(source, "-o", tmp_path / "q", "--dry-run", "--json").stdout)
    of_bundle = forecast(make_bundle(source), tmp_path / "q", make_recipe())
    assert [phase["name"] for phase in told["phases"]] == ["writing weights", "verifying", *PHASES]
    assert told["phases"][2]["memory"] == pytest.approx(of_bundle.phases[0].memory, rel=0.01)
    assert not (tmp_path / "q").exists()


def test_the_forecast_of_the_output_is_what_is_written(tiny_bundle, tmp_path):
    said = []
    recipe = make_recipe(method="rtn")
    quantize(tiny_bundle, tmp_path / "q", recipe, on_forecast=said.append)
    written = (tmp_path / "q" / "weights.bin").stat().st_size
    assert said[0].output == pytest.approx(written, rel=0.15)


def test_the_machine_is_measured_once_and_in_no_time():
    speed = this_machine()
    assert this_machine() is speed
    assert speed.product > 1e9
    assert 0 < speed.rtn < speed.gptq < 1e-4


def memory_of(settings):
    return settings.rows * 10 + settings.at_once * 100 + settings.streams


@pytest.mark.parametrize(
    ("memory", "expected", "notes"),
    [
        (1000, Settings(20), 0),
        (450, Settings(20, at_once=1), 2),
        (330, Settings(10, at_once=1), 3),
        (200, Settings(5, streams=32, at_once=1), 4),
    ],
)
def test_smaller_steps_where_memory_is_short(memory, expected, notes):
    settings, said = fitting(Settings(20), memory, memory_of)
    assert settings == expected
    assert len(said) == notes  # how much memory there is, and one for each setting


def test_steps_that_do_not_help_are_not_taken():
    settings, notes = fitting(Settings(20), 1, lambda settings: settings.rows)
    assert (settings, len(notes)) == (Settings(5), 2)


def test_long_texts_are_written_by_a_rounded_copy_of_a_large_model():
    assert [bits_of_text(gigabytes << 30) for gigabytes in (1, 5, 32)] == [32, 8, 4]


def test_too_little_memory_or_disk_is_said_before_the_work(tiny_bundle, tmp_path):
    done = call(tiny_bundle, "-o", tmp_path / "q", "--memory", "10MiB")
    assert done.exit_code == 1
    assert "10.0 MiB may be used" in done.stderr
    assert not list(tmp_path.iterdir())
    plenty = Forecast((Phase("quantizing", 1.0, 1, 1 << 60),), 1, 1 << 40)
    with pytest.raises(QuantizationError, match="are free"):
        plenty.require_room(Path(tmp_path))


def test_a_rounded_copy_writes_the_text(tiny_bundle, tmp_path, monkeypatch):
    """What is left of it is the text alone."""
    monkeypatch.setattr("quantizer.forecast.run.bits_of_text", lambda _: 8)
    recipe = replace(make_recipe(method="gptq"), calibration_tokens=600)
    result = quantize(tiny_bundle, tmp_path / "q", recipe, work=tmp_path / "work")
    assert result.manifest.quantization.calibration.source == "self"
    assert not (tmp_path / "work" / "writer").exists()
    assert list((tmp_path / "work").glob("self-*.npy"))


def test_what_is_left_follows_from_what_is_over():
    told = Forecast((Phase("calibrating", 10.0, 1), Phase("quantizing", 100.0, 1)), 1, 2)
    assert told.seconds_left("calibrating on 8 tokens", 0, 4, 4.0) == 106
    assert told.seconds_left("calibrating on 8 tokens", 2, 4, 10.0) == 10 + 200  # half as fast as expected
    assert told.seconds_left("quantizing", 3, 4, 75.0) == 25
    assert told.seconds_left("something else", 1, 2, 1.0) is None
