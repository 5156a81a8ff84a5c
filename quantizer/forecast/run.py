"""The forecast of one run of `onnxlm quantize`, and the settings that fit into memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from runtime.host.memory import available_memory

from ..calibration.data import CHUNK, HELD_OUT, rows_at_once
from ..parallel import threads
from ..recipe import Recipe
from ..settings import KEPT, Settings
from .fitting import bits_of_text, fitting
from .forecast import Forecast, free_space
from .phases import Phase, exporting, phases_of
from .sizes import Sizes
from .speed import Speed

_UNKNOWN = Speed(cores=1, product=1e11, memory=1e10, rtn=1e-8, search=1e-7, gptq=1e-7, polish=1e-7)
_COMFORTABLE = 4 << 30  # bytes of memory that nobody minds
_DISK_SHARE = 0.5  # of what is free that Hessians may take in a folder that was named


@dataclass(frozen=True)
class Run:
    """What a run is asked for, and of what sizes.

    Attributes:
        sizes: of the model.
        recipe: what to store, and how to choose it.
        output: bytes of the new bundle.
        own_text: whether the model has to write the text.
        measured: whether the result is compared with the source.
        of_checkpoint: whether the float bundle has to be made first.
        most_kept: bytes of Hessians that may be kept on disk.
    """

    sizes: Sizes
    recipe: Recipe
    output: int
    own_text: bool
    measured: bool
    of_checkpoint: bool = False
    most_kept: int = KEPT

    def forecast(self, speed: Speed | None = None, memory: int | None = None) -> tuple[Settings, Forecast]:
        """The settings that fit, and what will be taken with them.

        Args:
            speed: of the machine; without it memory and disk are right, and times are not.
            memory: bytes that may be used; by default what is free.
        """
        allowed = available_memory() if memory is None else memory

        def needs(settings: Settings) -> int:
            return max(phase.memory for phase in self._phases(settings, speed))

        settings, notes = fitting(self._comfortable(needs), allowed, needs)
        return settings, Forecast(tuple(self._phases(settings, speed)), self.output, allowed, notes)

    def _phases(self, settings: Settings, speed: Speed | None) -> Iterator[Phase]:
        tokens = self.recipe.calibration_tokens
        if self.of_checkpoint:
            yield from exporting(self.sizes, speed or _UNKNOWN)
        yield from phases_of(
            self.sizes, self.recipe, speed or _UNKNOWN, settings,
            own_text=self.own_text, measured=self.measured, tokens=tokens,
        )  # fmt: skip

    def _comfortable(self, needs: Callable[[Settings], int]) -> Settings:
        """As many matrices beside each other as there are threads, if they are small; else two."""
        count = -(-(self.recipe.calibration_tokens + HELD_OUT * CHUNK) // CHUNK)
        rows = rows_at_once(count, CHUNK * max(1, self.sizes.kv_bytes))
        two = Settings(rows, bits_of_text(self.sizes.weight_bytes), most_kept=self.most_kept)
        most = max(needs(two), _COMFORTABLE)
        more = (replace(two, at_once=at_once) for at_once in range(threads(), two.at_once, -1))
        return next((settings for settings in more if needs(settings) <= most), two)


def run_on(
    sizes: Sizes,
    parameters: int,
    recipe: Recipe,
    *,
    own_text: bool,
    measured: bool,
    of_checkpoint: bool = False,
    most_kept: int = KEPT,
) -> Run:
    """A run on a bundle with float weights, or on a checkpoint; arguments as the attributes of `Run`."""
    return Run(sizes, recipe, _stored_bytes(sizes, recipe, parameters), own_text, measured, of_checkpoint, most_kept)


def most_kept(work: Path | None) -> int:
    """Bytes of Hessians that are kept: in a folder that was named for them, as many as lie there easily."""
    return KEPT if work is None else max(KEPT, int(free_space(work) * _DISK_SHARE))


def _stored_bytes(sizes: Sizes, recipe: Recipe, parameters: int) -> int:
    if recipe.budget is not None:
        return int(parameters * recipe.budget / 8)
    quantized = {True: 0, False: 0}
    for matrix in sizes.matrices:
        quantized[matrix.site.role == "embedding"] += matrix.weights
    each = {True: recipe.embedding.scheme, False: recipe.linear.scheme}
    bits = sum(count * (each[of].bits + 16 / each[of].group_size) for of, count in quantized.items())
    return int(bits / 8) + max(0, sizes.weight_bytes - 4 * sum(quantized.values()))
