"""What `import quantizer` offers: the commands as functions. A path is a `str` or a `Path` everywhere."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from .choices import Choices, recipe_of
from .recipe import Recipe

if TYPE_CHECKING:
    from .evaluation.kl import Scores
    from .flow import Result
    from .forecast.forecast import Forecast
    from .kv_cache.quality import CacheQuality
    from .progress import Progress

AnyPath = str | PathLike[str]


def quantize(
    source: AnyPath,
    target: AnyPath,
    recipe: Recipe | AnyPath | None = None,
    *,
    fail_if: str | None = None,
    work: AnyPath | None = None,
    overwrite: bool = False,
    memory: int | None = None,
    on_forecast: "Callable[[Forecast], None] | None" = None,
    progress: "Progress | None" = None,
    **choices: Unpack[Choices],
) -> "Result":
    """Write a quantized copy of the bundle `source` to the folder `target`, completely or not at all.

    >>> import quantizer
    >>> quantizer.quantize("smol", "smol-5", preset="balanced", calibration="chats.jsonl")  # doctest: +SKIP

    Args:
        source: a bundle with float weights.
        target: the new bundle's folder.
        recipe: a `Recipe`, a TOML file, or a bundle whose recipe is used again; no `choices` may be made with it.
        fail_if: a condition such as "kl>0.06" under which nothing is written.
        work: folder that keeps calibration; by default one beside `target`, removed in the end.
        overwrite: replace a bundle that is already there.
        memory: bytes that may be used; by default what is free. With less, work is done in smaller steps.
        on_forecast: is told what the run will take, phase by phase, before it begins.
        progress: called with the phase, the work done and the total work.
        choices: preset, method, bits, group_size, symmetric, embedding_bits, residual_channels, budget, costs, time,
            kv, calibration, calibration_tokens, seed, exclude: as the options of `onnxlm quantize`, `costs` being
            `--for`; nothing at all means "balanced".

    Raises:
        QuantizationError: options that contradict each other, a bundle that cannot be quantized so, too little memory
            or disk, a missed bound.
        BundleError: `source` cannot be read, or `target` is in the way.
    """
    from .flow import quantize as run
    from .gate import parse_gate
    from .progress import silent

    chosen = recipe_of(recipe, choices, progress or silent)
    return run(
        Path(source), Path(target), chosen, gate=parse_gate(fail_if) if fail_if else None,
        work=None if work is None else Path(work), overwrite=overwrite, progress=progress,
        memory=memory, on_forecast=on_forecast,
    )  # fmt: skip


def evaluate(
    bundle: AnyPath,
    reference: AnyPath,
    text: AnyPath,
    *,
    tokens: int = 8192,
    context: int = 512,
    progress: "Progress | None" = None,
) -> "Scores":
    """Compare a bundle with the one it was made from: KL divergence, agreement and perplexity on a text.

    Args:
        bundle: the quantized one.
        reference: the unquantized one.
        text: `.txt`, `.jsonl` or `.npy` of token ids.
        tokens: most tokens to compare.
        context: tokens of each chunk.
        progress: is told how much is done.

    Raises:
        QuantizationError: the text cannot be used, or the bundles are not of one model.
    """
    from runtime.bundle.bundle import open_bundle

    from .calibration.data import text_to_measure
    from .evaluation.quality import measure_scores, require_same_model
    from .progress import silent

    ours, theirs = open_bundle(Path(bundle)), open_bundle(Path(reference))
    require_same_model(ours, theirs)
    return measure_scores(ours, theirs, text_to_measure(Path(text), theirs, tokens, context), progress or silent)


def quantize_cache(
    source: AnyPath,
    target: AnyPath,
    *,
    bits: Literal[8, 4] = 8,
    calibration: AnyPath = "self",
    calibration_tokens: int = 8192,
    seed: int = 0,
    overwrite: bool = False,
    progress: "Progress | None" = None,
) -> "CacheQuality":
    """Store the keys and values of a bundle in 8 or 4 bits; its weights stay as they are.

    Args:
        source: a bundle whose cache holds floats.
        target: the new bundle's folder.
        bits: of a key or value.
        calibration: text that the scales are measured on, or "self" for text that the model writes itself.
        calibration_tokens: maximum number of tokens to use.
        seed: of the model's own text.
        overwrite: replace a bundle that is already there.
        progress: is told what is being done.

    Raises:
        QuantizationError: the cache is quantized already, or the text cannot be used.
    """
    from runtime.bundle.bundle import open_bundle

    from .calibration.data import cache_text
    from .kv_cache.quantize import quantize_cache as run
    from .progress import silent
    from .recipe import CacheText

    tell = progress or silent
    chosen = CacheText(str(calibration), calibration_tokens, seed)
    text = cache_text(open_bundle(Path(source)), chosen, tell)
    return run(Path(source), Path(target), bits, text, chosen=chosen, overwrite=overwrite, progress=tell)[1]
