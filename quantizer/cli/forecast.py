"""What `onnxlm quantize` says before it begins, and all that it says with `--dry-run`."""

import importlib
import json
from pathlib import Path

import click

from runtime.cli.terminal.progress import is_quiet

from ..flow import forecast as forecast_bundle
from ..flow import sites_of
from ..forecast.forecast import Forecast
from ..forecast.run import most_kept, run_on
from ..forecast.sizes import sizes_of
from ..forecast.speed import this_machine
from ..gate import Gate
from ..preconditions import require_text
from ..recipe import Recipe
from ..summary import columns
from .source import is_checkpoint, missing_package


def forecast(
    source: Path, target: Path, recipe: Recipe, gate: Gate | None, work: Path | None, memory: int | None
) -> Forecast:
    """What it takes to quantize a bundle or a checkpoint; nothing is written.

    Raises:
        OnnxlmError: what can be known to fail before the work.
    """
    if not is_checkpoint(source):
        return forecast_bundle(source, target, recipe, gate=gate, work=work, memory=memory)
    require_text(recipe, gate)
    try:
        found = importlib.import_module("exporter.float_sizes").float_sizes(source)
    except ModuleNotFoundError as error:
        raise missing_package(error) from error
    sites = sites_of(found.graphs, found.vocabulary, recipe)
    sizes = sizes_of(found.graphs[0], sites, found.vocabulary, found.kv_bytes, found.weight_bytes)
    reads = recipe.needs_text or recipe.kv is not None or gate is not None
    own = reads and recipe.calibration == "self"
    run = run_on(
        sizes, found.parameters, recipe, own_text=own, measured=reads, of_checkpoint=True, most_kept=most_kept(work)
    )
    return run.forecast(this_machine(), memory)[1]


def say(told: Forecast, *, as_json: bool = False, err: bool = True) -> None:
    """On stderr, where the outcome of a run is data, or as the outcome itself."""
    text = json.dumps(told.as_data(), indent=1) if as_json else "\n".join(told.lines(columns))
    click.echo(text, err=err)


class Expected:
    """The forecast of the run that is under way, once it is known."""

    def __init__(self) -> None:
        self._known: Forecast | None = None

    def tell(self, known: Forecast) -> None:
        """Say it, and go by it."""
        self._known = known
        if not is_quiet():
            say(known)

    def seconds_left(self, phase: str, done: int, total: int, elapsed: float) -> float | None:
        """Of the whole run; None before the forecast."""
        return self._known.seconds_left(phase, done, total, elapsed) if self._known else None
