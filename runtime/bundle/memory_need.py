"""What a bundle needs of memory, and what would fit: for whoever reads that an allocation failed."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ExecutionError
from ..host.byte_units import format_bytes
from ..host.memory import available_memory
from .bundle import Bundle
from .kv_layout import STATE_COPIES

_FAILED = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory", "out of memory")
_CONTEXTS = (32768, 8192, 2048, 512)


@contextmanager
def explained(bundle: Bundle, *, slots: int, context: int | None) -> Iterator[None]:
    """Turn a failed allocation into an error that says what the bundle needs, what is free, and what would fit.

    Args:
        bundle: being loaded.
        slots: sequences that were asked for.
        context: tokens of each; None is the model's most.
    """
    try:
        yield
    except (MemoryError, ExecutionError, OSError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in _FAILED):
            raise
        free = available_memory()
        longest = bundle.manifest.architecture.context_length
        raise ExecutionError(
            f"{bundle.folder}: out of memory. {need(bundle, slots, context or longest, free)}"
        ) from error


def need(bundle: Bundle, slots: int, context: int, free: int) -> str:
    """What the bundle needs for `slots` sequences of `context` tokens, and what fits in `free` bytes."""
    weights, left = _weights(bundle), free - _weights(bundle)
    row = _row(bundle, context)
    words = (
        f"It needs {format_bytes(weights)} for weights and up to {format_bytes(row)} for each of {slots} sequences of "
        f"{context:,} tokens; {format_bytes(free)} are free. "
    )
    fits = next(
        (length for length in (context, *_CONTEXTS) if length <= context and _row(bundle, length) <= left), None
    )
    if fits is None:
        advice = "Not even the weights fit: use a smaller model, or fewer bits (`onnxlm quantize`)."
    else:
        most = min(slots, left // _row(bundle, fits))
        advice = f"What fits: --max-concurrency {most} --context {fits}."
    stored = bundle.manifest.kv_cache.stored_bits
    if stored > 8:
        advice += f" `onnxlm quantize-kv` stores keys and values in 8 bits instead of {stored}."
    return words + advice


def _weights(bundle: Bundle) -> int:
    return sum(entry.size for entry in bundle.manifest.files.values())


def _row(bundle: Bundle, context: int) -> int:
    """Bytes of one sequence."""
    return context * bundle.manifest.kv_cache.bytes_per_token + STATE_COPIES * bundle.manifest.state_bytes
