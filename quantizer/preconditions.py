"""What can be known to fail before any work is done."""

from collections.abc import Sequence
from pathlib import Path

from runtime.adapters.fitting import require_no_adapter_inputs
from runtime.bundle.bundle import Bundle
from runtime.errors import QuantizationError

from .allocation.budget import allocate_bytes
from .allocation.candidates import candidates_of
from .allocation.decode_time import allocate_time
from .gate import Gate
from .graph.graphs import Graphs
from .graph.quantizable import QuantizableWeight
from .kv_cache.quantize import bits_of, require_storable
from .recipe import Recipe
from .storage.weights_file import Layout


def require_usable(bundle: Bundle, recipe: Recipe, gate: Gate | None) -> None:
    """A float bundle, for the CPU if it is to be calibrated or measured, whose cache can be stored as wanted.

    Raises:
        QuantizationError: it is not.
    """
    target = bundle.manifest.target.provider
    require_no_adapter_inputs(bundle, "quantization")
    if bundle.manifest.task is not None:
        _require_usable_for_texts(bundle, recipe, gate)
    elif gate and gate.of_texts:
        raise QuantizationError(
            f"--fail-if {gate.figure}: that is of embeddings and scores; of a model that generates there are "
            "kl, kl_p99, top1 and perplexity."
        )
    if bundle.manifest.quantization is not None:
        raise QuantizationError(
            f"{bundle.folder} is quantized already; quantizing twice loses twice. Start from the float bundle."
        )
    if recipe.kv is not None:
        require_storable(bundle, bits_of(recipe.kv))
    if bundle.manifest.kv_cache.dtype in ("int8", "uint8") and (recipe.permute or recipe.smoothing):
        raise QuantizationError(
            f"{bundle.folder}: its values are stored by scales for the channels as they are, and this method reorders "
            "and scales channels. Start from the float bundle, and store keys and values in the same run: --kv int8."
        )
    if (recipe.needs_text or gate) and target != "cpu":
        raise QuantizationError(
            f"{bundle.folder} was built for {target}; calibration and evaluation run on the CPU. Quantize a bundle "
            "exported for cpu, or choose a method that needs no text: --preset fast."
        )


def _require_usable_for_texts(bundle: Bundle, recipe: Recipe, gate: Gate | None) -> None:
    """A model that reads whole texts has no next token to measure by, and writes no text to calibrate on."""
    kind = "an embedding model" if bundle.manifest.task and bundle.manifest.task.kind == "embed" else "a reranker"
    said = f"{bundle.folder} is of {kind}, "
    if recipe.kv is not None:
        raise QuantizationError(f"{said}which keeps no keys and values. Leave out --kv.")
    if recipe.weighs:
        raise QuantizationError(
            f"{said}and budgets are spent by the next token's distribution, which it does not have. Choose --preset "
            "fast, --bits 8, or --method gptq with --calibration FILE."
        )
    if recipe.needs_text and recipe.calibration == "self":
        raise QuantizationError(f"{said}which writes no text of its own. Give some by --calibration FILE.")
    if gate and not gate.of_texts:
        raise QuantizationError(f"--fail-if {gate.figure}: of {kind} cosine, cosine_min and max_difference are known.")


def require_text(recipe: Recipe, gate: Gate | None) -> None:
    """The file of text that the recipe names, where text is needed.

    Raises:
        QuantizationError: there is no such file.
    """
    path = Path(recipe.calibration)
    if recipe.calibration == "self" or not (recipe.needs_text or recipe.kv or gate) or path.is_file():
        return
    state = "is a folder" if path.is_dir() else "no such file"
    raise QuantizationError(
        f"calibration: {path}: {state}. Name a .txt, .jsonl or .npy file, or write 'self' for text of the model's own."
    )


def require_affordable(bundle: Bundle, graphs: Graphs, sites: Sequence[QuantizableWeight], recipe: Recipe) -> None:
    """A budget of bytes or time, if the recipe names one, that the smallest way to store every matrix keeps.

    Raises:
        QuantizationError: it is impossible.
    """
    if recipe.budget is not None:
        candidates = {site.unit: candidates_of(site, recipe) for site in sites}
        allocate_bytes(sites, candidates, {}, budget_bytes(bundle, recipe.budget), layout_of(graphs))
    if recipe.time is not None:
        allocate_time(sites, {site.unit: candidates_of(site, recipe) for site in sites}, {}, recipe.time)


def budget_bytes(bundle: Bundle, budget: float) -> int:
    """Bytes of weights.bin that `budget` bits for each parameter allow."""
    return int(budget * bundle.manifest.architecture.parameters / 8)


def layout_of(graphs: Graphs) -> Layout:
    """weights.bin as it is."""
    return Layout({name: tensor.nbytes for name, tensor in graphs.initializers().items()})
