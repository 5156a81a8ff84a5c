"""Loading a bundle: which executor, how much memory for keys and values, and an engine over both."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .bundle import json_codec
from .bundle.bundle import Bundle, open_bundle
from .bundle.sequence_task import require_generation
from .errors import BundleError, OptionError
from .host.memory import available_memory
from .options import EngineOptions
from .ort.background import prepare_later
from .ort.executor import OnnxExecutor
from .ort.prepared import find
from .ort.runner_protocol import ModelRunner, states_of
from .ort.session import choose_provider

if TYPE_CHECKING:
    from .cache.blocks import BlockPool
    from .engine.engine import Engine

_KV_SHARE = 0.5  # of the free memory, for keys and values where nothing else is said
_GENERATION_CONFIG = "generation_config.json"


class Opening:
    """A bundle whose executor another thread loads, while this one imports and reads what else an answer needs.

    ONNX Runtime does not hold the interpreter's lock; imports and tokenizers do.

    Args:
        path: the bundle's folder; opened at once.
        provider: "cpu", "cuda" or "auto".
        options: how the engine uses the machine.

    Raises:
        BundleError: the folder is not a usable bundle.
    """

    def __init__(self, path: str | Path, provider: str, options: EngineOptions) -> None:
        self.bundle = open_bundle(path)
        require_generation(self.bundle, "generating or chatting")
        pool = ThreadPoolExecutor(1, "onnxlm-load")
        self._executor = pool.submit(load_executor, self.bundle, provider, options)
        pool.shutdown(wait=False)

    def executor(self) -> OnnxExecutor:
        """Wait for the executor, or raise what loading it raised."""
        return self._executor.result()

    def close(self) -> None:
        """Close the executor, if it could be loaded: somebody else failed."""
        if self._executor.exception() is None:
            self._executor.result().close()


def load_executor(bundle: Bundle, provider: str, options: EngineOptions) -> OnnxExecutor:
    """The executor over a bundle's own graphs, or over weights that were prepared for this processor.

    Raises:
        OptionError: `kv_dtype` is not what the graphs hold, or `context` more than the model has.
        ProviderError: the provider cannot start.
    """
    _check_kv_dtype(bundle, options.kv_dtype)
    _check_context(bundle, options.context)
    chosen, prepared = choose_provider(provider, bundle), find(bundle)
    executor = OnnxExecutor(
        bundle,
        chosen,
        graph=prepared.graph if prepared else None,
        slots=options.max_concurrency,
        context=options.context,
        threads=options.threads,
        kv_memory=options.kv_memory,
    )
    if prepared:
        prepared.release_stored()
    elif options.prepare:
        prepare_later(bundle)
    return executor


def _check_context(bundle: Bundle, wanted: int | None) -> None:
    most = bundle.manifest.architecture.context_length
    if wanted is not None and wanted > most:
        raise OptionError(
            f"context {wanted} is more than the {most} tokens that {bundle.folder} has. "
            f"Leave --context out, or give at most {most}."
        )


def _check_kv_dtype(bundle: Bundle, wanted: str) -> None:
    cache = bundle.manifest.kv_cache
    stored = "int4" if cache.bits == 4 else cache.dtype
    if wanted not in ("auto", stored):
        raise OptionError(
            f"kv_dtype {wanted!r}: the graphs of {bundle.folder} hold keys and values in {stored}. "
            "`onnxlm quantize-kv` writes a bundle with int8 or int4."
        )


def build_engine(executor: ModelRunner, bundle: Bundle, options: EngineOptions) -> "Engine":
    """An engine over an executor, not yet started.

    Raises:
        OptionError: the memory for keys and values is too small, or the executor cannot do what an option needs.
    """
    from .cache.prefix_cache import BLOCK_TOKENS, PrefixCache
    from .engine.engine import Engine
    from .engine.scheduling.limits import Limits
    from .engine.scheduling.prefill_policy import ChunkedPrefillPolicy
    from .engine.scheduling.scheduler import Scheduler
    from .engine.scheduling.waiting import WaitingLimit

    if options.speculation and not executor.can_give_all_logits:
        raise OptionError("speculation needs logits of several positions, which this executor does not give.")
    pool, states = _pool(executor, options), states_of(executor)
    windows = [layer.window for layer in bundle.manifest.architecture.layers if layer.window is not None]
    limits = Limits(
        slots=executor.slots,
        context=executor.capacity,
        window=min(windows, default=None),
        optimistic=options.admission == "optimistic",
        reuse_generated=options.reuse_generated or (states is None and _decode_is_exact(bundle)),
        states_every=BLOCK_TOKENS if states else 0,
    )
    queue = WaitingLimit(options.max_queue, options.max_queue_tokens)
    prefixes = PrefixCache(options.prefix_cache) if options.prefix_cache else None
    pace = ChunkedPrefillPolicy(options.prefill_chunk)
    return Engine(executor, Scheduler(limits, pool), queue=queue, policy=pace, prefixes=prefixes)


def _decode_is_exact(bundle: Bundle) -> bool:
    """Whether decode stores the bits that prefill would: attention over codes has one kernel for both, on CPU."""
    manifest = bundle.manifest
    return manifest.target.provider == "cpu" and manifest.kv_cache.dtype in ("int8", "uint8")


def _pool(executor: ModelRunner, options: EngineOptions) -> "BlockPool":
    from .cache.blocks import BlockPool

    states, per_token = states_of(executor), executor.bytes_per_token
    row_bytes = states.state_bytes if states else 0
    everything = executor.slots * (executor.capacity * per_token + row_bytes)
    held = getattr(executor, "kv_budget", None)  # on a GPU the slots are as long as the memory there allows
    budget = held or options.kv_memory or min(everything, int(available_memory() * _KV_SHARE))
    pool = BlockPool.of_bytes(budget, per_token, row_bytes=row_bytes)
    if not pool.tokens:
        beside = f" and {row_bytes} bytes per sequence for the states of its layers" if row_bytes else ""
        raise OptionError(
            f"kv_memory of {budget} bytes holds not even {pool.block_tokens} tokens of this model, which needs "
            f"{per_token} bytes per token{beside}. Raise --kv-memory."
        )
    return pool


def generation_config(bundle: Bundle) -> Mapping[str, Any]:
    """The bundle's generation_config.json; empty if it has none.

    Raises:
        BundleError: it is not a JSON object.
    """
    if not bundle.has(_GENERATION_CONFIG):
        return {}
    try:
        config = json_codec.loads(bundle.path(_GENERATION_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BundleError(f"{bundle.folder}: {_GENERATION_CONFIG} cannot be read ({error}). Export again.") from error
    if not isinstance(config, dict):
        raise BundleError(f"{bundle.folder}: {_GENERATION_CONFIG} is not an object. Export the model again.")
    return config
