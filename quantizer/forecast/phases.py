"""Time, memory and disk of each phase of a run.

Operations are counted from sizes; their rates are those of this machine. What a formula leaves out (attention, norms,
starting sessions, page faults) is in the factors at the top, which were fitted to runs of 135M and 1.2B parameters on
two cores.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..evaluation.kl import OPEN_BYTES
from ..parallel import threads
from ..recipe import Recipe
from ..settings import Settings
from .sizes import Matrix, Sizes
from .speed import Speed

_FACTOR = 1.4  # of K³ / 3: copies, and corners that one thread computes
_MODEL = 2.3  # of the products' time: all else that a layer does
_COMPARED = 1.6  # the same, of whole chunks
_HESSIANS = 1.3
_STREAMS = 1.3  # products of few tokens, and a session for each replaced matrix
_HEAD_BYTES = 24.0  # read and written for each logit that is compared
_SAMPLED_BYTES = 40.0  # the same, for each logit that a token is drawn from
_EXPORT_PASSES = 100.0  # over memory, file and hash included
_VERIFY_PASSES = 105.0  # the same, where one layer after the other is computed by another path
_ELEMENTS, _LONG_ELEMENTS = 1.7, 1.1  # of the time in one thread: steps of short rows wait for the interpreter
_LONG = 4096  # rows
_SCHEMES = 5  # in which a matrix's loss is predicted
_OVERHEAD = 0.004  # seconds to begin a matrix or a layer's session
_SLICE_BYTES = 150 << 20  # of the rows that a thread quantizes
_PACKED = 1.3  # of stored bytes, as kernels read them
_PROCESS = 150 << 20  # interpreter and libraries
_STEADY = 1.15  # buffers that allocators keep


@dataclass(frozen=True)
class Phase:
    """What a phase takes: seconds, bytes of memory of its own at most, bytes of disk while it lasts or behind it."""

    name: str
    seconds: float
    memory: int
    disk: int = 0


def phases_of(
    sizes: Sizes, recipe: Recipe, speed: Speed, settings: Settings, *, own_text: bool, measured: bool, tokens: int
) -> Iterator[Phase]:
    """Of a run, in their order.

    Args:
        sizes: of the model.
        recipe: of the run.
        speed: of the machine.
        settings: that the run uses.
        own_text: whether the model writes the text.
        measured: whether the result is compared with the source.
        tokens: of text to calibrate on.
    """
    held_out = 2048
    if own_text:
        yield _own_text(sizes, speed, settings, tokens + held_out)
    if recipe.needs_text:
        yield _calibrating(sizes, speed, settings, tokens)
    if recipe.weighs:
        yield _sensitivity(sizes, speed, settings, tokens)
    yield _quantizing(sizes, recipe, speed, settings, tokens)
    if measured:
        yield _evaluating(sizes, recipe, speed, held_out)


def exporting(sizes: Sizes, speed: Speed) -> Iterator[Phase]:
    """The float bundle of a checkpoint, in the work folder: read, converted and written, then compared with it."""
    passes = sizes.weight_bytes / speed.memory
    largest = max((4 * m.site.rows * m.site.inputs for m in sizes.of_layers), default=0)  # others by rows
    yield Phase("writing weights", passes * _EXPORT_PASSES, _PROCESS + largest, sizes.weight_bytes)
    yield Phase("verifying", passes * _VERIFY_PASSES, _PROCESS)


def packing_seconds(weights: int, method: str, speed: Speed) -> float:
    """Of weights that are rounded or searched, packed, checked and written: all cores."""
    each = speed.rtn if method == "rtn" else speed.search
    return weights * (each + 2 * speed.rtn) / speed.cores + weights * 6 / speed.memory


def _own_text(sizes: Sizes, speed: Speed, settings: Settings, tokens: int) -> Phase:
    rows = max(1, settings.rows)
    rounds = -(-tokens // (512 * rows))
    stored = sizes.weight_bytes * (settings.text_bits + 0.5) / 32
    products = rows * (sizes.operations + sizes.head_operations) / speed.product * _MODEL
    step = max(stored / speed.memory, products) + rows * sizes.vocabulary * _SAMPLED_BYTES / speed.memory
    step += _OVERHEAD + rows * 256 * sizes.kv_bytes / speed.memory
    packed = settings.text_bits < 32
    packing = packing_seconds(sizes.weight_bytes // 4, "rtn", speed) if packed else 0.0
    memory = _PROCESS + stored + rows * 512 * sizes.kv_bytes
    return Phase("writing calibration text", packing + rounds * 511 * step, int(memory), int(stored) if packed else 0)


def _calibrating(sizes: Sizes, speed: Speed, settings: Settings, tokens: int) -> Phase:
    seconds = tokens * sizes.operations / speed.product * _MODEL + sizes.layers * _OVERHEAD
    states = 2 * 2 * tokens * sizes.hidden * 2  # before and behind a layer, two values in 16 bits
    if settings.keep(sizes.hessian_bytes):
        seconds += tokens * sizes.hessian_operations / speed.product * _HESSIANS
        return Phase("calibrating", seconds, _layer_memory(sizes, settings), states + sizes.hessian_bytes)
    return Phase("calibrating", seconds, _layer_memory(sizes, settings), states // 2 * sizes.layers)


def _sensitivity(sizes: Sizes, speed: Speed, settings: Settings, tokens: int) -> Phase:
    sampled = 4 * min(max(tokens // 128, 32), 96)
    each = len(sizes.of_layers) / max(1, sizes.layers)  # streams that a layer begins
    most = settings.streams + 3 * each
    runs = sum(min(each * layer, most) + each + 1 for layer in range(sizes.layers))
    ends = min(each * sizes.layers, most + 4 * each)
    seconds = runs * (sampled * sizes.operations / sizes.layers / speed.product * _STREAMS + _OVERHEAD)
    logits = ends * sampled / 2 * sizes.vocabulary
    seconds += logits * (2 * sizes.hidden / speed.product + _HEAD_BYTES / speed.memory)
    seconds += sum(_trying(matrix, speed) for matrix in sizes.matrices) + _again(sizes, speed, settings, tokens)
    streams = int(ends * sampled * sizes.hidden * 4 * 2)
    of_layers = streams * _STEADY + _matrix_memory(sizes.of_layers, settings, _trying_memory)
    of_layers += _made_again(sizes, settings)
    alone = [_trying_memory(matrix) for matrix in sizes.matrices if matrix.site.role == "embedding"]
    of_ends = streams + max(alone, default=0.0) + _slice_memory() + sampled * sizes.vocabulary * 6
    memory = _PROCESS + int(max(of_layers, of_ends))
    return Phase("measuring sensitivity", seconds, memory, streams)


def _quantizing(sizes: Sizes, recipe: Recipe, speed: Speed, settings: Settings, tokens: int) -> Phase:
    if not recipe.needs_text:
        weights = sum(matrix.weights for matrix in sizes.matrices)
        memory = _PROCESS + int(settings.at_once * sizes.largest * 8)
        return Phase("quantizing", packing_seconds(weights, recipe.method, speed), memory, 0)
    seconds = sum(_gptq(matrix, speed, recipe.polish) for matrix in sizes.matrices)
    seconds += _again(sizes, speed, settings, tokens)
    codes = sum(matrix.weights for matrix in sizes.matrices) * 5 // 8  # of four bits, mostly
    memory = _PROCESS + int(_matrix_memory(sizes.matrices, settings, _codes_memory) + _made_again(sizes, settings))
    return Phase("quantizing", seconds, memory, codes)


def _evaluating(sizes: Sizes, recipe: Recipe, speed: Speed, tokens: int) -> Phase:
    products = 2 * tokens * (sizes.operations + sizes.head_operations) / speed.product * _COMPARED
    logits = 2 * tokens * sizes.vocabulary * _HEAD_BYTES / speed.memory
    loading = sizes.weight_bytes * 1.5 / speed.memory
    budget = recipe.budget or recipe.linear.scheme.bits + 1
    packed = sizes.weight_bytes / 32 * budget * _PACKED
    table = sizes.hidden * sizes.vocabulary / 8 * budget * _PACKED
    memory = _PROCESS + min(packed, OPEN_BYTES * _PACKED + table) + 128 * sizes.vocabulary * _HEAD_BYTES
    return Phase("evaluating", products + logits + loading, int(memory))


def _again(sizes: Sizes, speed: Speed, settings: Settings, tokens: int) -> float:
    """Layers that run once more for their Hessians, where these are not kept."""
    if settings.keep(sizes.hessian_bytes):
        return 0.0
    return tokens * (sizes.operations * _MODEL + sizes.hessian_operations * _HESSIANS) / speed.product


def _trying(matrix: Matrix, speed: Speed) -> float:
    """GPTQ without polish, the error of each input under several schemes, and conditional variances."""
    inverse = 2 / 3 * matrix.site.inputs**3 * matrix.site.count / speed.product * _FACTOR
    lost = _SCHEMES * 1.5 * matrix.weights * speed.rtn / speed.cores
    return _gptq(matrix, speed, 0) + inverse + lost


def _gptq(matrix: Matrix, speed: Speed, polishing: int) -> float:
    site = matrix.site
    factor = site.inputs**3 / 3 * site.count / speed.product * _FACTOR
    products = (1 + 2 * polishing) * matrix.weights * site.inputs / speed.product
    steps = _LONG_ELEMENTS if site.rows >= _LONG else _ELEMENTS
    elements = steps * matrix.weights * (speed.gptq + polishing * speed.polish + 2 * speed.rtn) / speed.cores
    return factor + products + elements + _OVERHEAD * site.count


def _layer_memory(sizes: Sizes, settings: Settings) -> int:
    """A layer's weights as a session packs them, its Hessians as sums in double precision, and a batch of tokens."""
    layer = sum(matrix.weights for matrix in sizes.of_layers) * 4 // max(1, sizes.layers)
    hessians = sizes.hessian_bytes // max(1, sizes.layers)
    batch = 2048 * (sizes.hidden * 4 + sizes.widest * 3) * 4
    return int(_PROCESS + layer * _STEADY + hessians * (3 if settings.keep(sizes.hessian_bytes) else 0) + batch)


def _matrix_memory(matrices: Sequence[Matrix], settings: Settings, needed: Callable[[Matrix], float]) -> float:
    """Of the neighbours that need most, as many as are under way at once."""
    needs = [needed(matrix) for matrix in matrices]
    beside = (sum(needs[first : first + settings.at_once]) for first in range(len(needs)))
    return max(beside, default=0.0) + _slice_memory()


def _made_again(sizes: Sizes, settings: Settings) -> float:
    """A layer that runs again where Hessians are not kept on disk: its weights, sums in double precision, results."""
    if settings.keep(sizes.hessian_bytes):
        return 0.0
    layer = sum(matrix.weights for matrix in sizes.of_layers) * 4
    return (4 * sizes.hessian_bytes + layer) / max(1, sizes.layers)


def _slice_memory() -> float:
    """What threads hold of the rows that they quantize: weights, their errors, targets, codes."""
    return float(threads() * _SLICE_BYTES)


def _trying_memory(matrix: Matrix) -> float:
    """Weights and codes; then values, and those in the order of the graph. H, its factor, and that one's inverse."""
    one, inputs = 4.0 * matrix.site.rows * matrix.site.inputs, matrix.site.inputs
    if matrix.site.count > 1:  # the values of all, a few of them at work
        return 4.0 * matrix.weights + threads() * (1.3 * one + 16.0 * inputs**2)
    return 2.3 * one + 16.0 * inputs**2


def _codes_memory(matrix: Matrix) -> float:
    """Weights, and codes before and behind joining; H and its factor."""
    one, inputs = 4.0 * matrix.site.rows * matrix.site.inputs, matrix.site.inputs
    if matrix.site.count > 1:
        return 1.5 * matrix.weights + threads() * (one + 12.0 * inputs**2)
    return 1.5 * one + 12.0 * inputs**2
