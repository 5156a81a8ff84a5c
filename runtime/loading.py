"""Loading a bundle: which executor, how much memory for keys and values, and an engine over both."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .adapters.fitting import FittedAdapter, load_adapters
from .bundle import json_codec
from .bundle.bundle import Bundle, open_bundle
from .bundle.memory_need import explained
from .bundle.sequence_task import require_generation
from .errors import BundleError, OptionError
from .host.memory import available_memory
from .options import EngineOptions
from .ort.executor import OnnxExecutor
from .ort.paged.runner import PagedExecutor
from .ort.prepared.background import prepare_later
from .ort.prepared.weights import find
from .ort.providers import ProviderName
from .ort.runner_protocol import ModelRunner, states_of
from .ort.session import choose_provider
from .text.tokenizer import Tokenizer
from .text.vocabulary import same_vocabulary

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
        lora: folders of LoRA adapters by name; read at once.

    Attributes:
        adapters: the names of the adapters.

    Raises:
        BundleError: the folder is not a usable bundle.
        CheckpointError, UnsupportedError: an adapter cannot be read, or does not fit.
    """

    def __init__(
        self,
        path: str | Path,
        provider: str,
        options: EngineOptions,
        lora: Mapping[str, str | Path] | None = None,
    ) -> None:
        self.bundle, self._begun = open_bundle(path), threading.Event()
        require_generation(self.bundle, "generating or chatting")
        adapters = load_adapters(self.bundle, lora or {})
        self.adapters: tuple[str, ...] = tuple(one.name for one in adapters)
        pool = ThreadPoolExecutor(1, "onnxlm-load")
        self._executor = pool.submit(load_executor, self.bundle, provider, options, adapters, self._begun.set)
        self._executor.add_done_callback(lambda _: self._begun.set())
        pool.shutdown(wait=False)

    def wait_until_begun(self) -> None:
        """Wait until ONNX Runtime loads, so that what holds the interpreter's lock long does not keep it from that."""
        self._begun.wait()

    def executor(self) -> OnnxExecutor | PagedExecutor:
        """Wait for the executor, or raise what loading it raised."""
        return self._executor.result()

    def close(self) -> None:
        """Close the executor, if it could be loaded: somebody else failed."""
        if self._executor.exception() is None:
            self._executor.result().close()


def load_executor(
    bundle: Bundle,
    provider: str,
    options: EngineOptions,
    adapters: Sequence[FittedAdapter] = (),
    begun: Callable[[], None] = lambda: None,
) -> OnnxExecutor | PagedExecutor:
    """The executor over a bundle's own graphs, or over weights that were prepared for this processor.

    `begun` is called before ONNX Runtime loads them.

    Raises:
        OptionError: `kv_dtype` is not what the graphs hold, or `context` more than the model has.
        ProviderError: the provider cannot start.
    """
    _check_kv_dtype(bundle, options.kv_dtype)
    _check_context(bundle, options.context)
    chosen = choose_provider(provider, bundle)
    if bundle.manifest.graphs.paged is not None:
        begun()
        return _load_paged(bundle, chosen, options, adapters)
    prepared = find(bundle)
    begun()
    slots, context = options.max_concurrency, options.context
    with explained(bundle, slots=slots, context=context) if chosen == "cpu" else nullcontext():  # a GPU tells itself
        executor = OnnxExecutor(
            bundle,
            chosen,
            graph=prepared.graph if prepared else None,
            slots=slots,
            context=context,
            threads=options.threads,
            kv_memory=options.kv_memory,
            adapters=adapters,
        )
    if prepared:
        prepared.release_stored()
    elif options.prepare:
        prepare_later(bundle)
    return executor


def _load_paged(
    bundle: Bundle, provider: ProviderName, options: EngineOptions, adapters: Sequence[FittedAdapter]
) -> PagedExecutor:
    """The executor over keys and values in blocks."""
    if adapters:
        raise OptionError("lora: the paged graph takes no adapters. Export the bundle without --kv paged.")
    return PagedExecutor(
        bundle,
        provider,
        slots=options.max_concurrency,
        context=options.context,
        threads=options.threads,
        kv_memory=options.kv_memory,
    )


def load_draft(bundle: Bundle, options: EngineOptions, tokenizer: Tokenizer) -> OnnxExecutor | PagedExecutor | None:
    """The executor of the draft model in `options`, with one slot; None if there is none.

    Raises:
        BundleError: its folder is not a usable bundle.
        OptionError: it has another vocabulary than `bundle`, or layers whose state cannot go back.
    """
    if options.draft is None:
        return None
    draft = open_bundle(options.draft)
    require_generation(draft, "drafting")
    if draft.manifest.state_bytes:
        raise OptionError(f"{draft.folder} cannot draft: its layers keep a state that cannot go back. Choose another.")
    if not same_vocabulary(bundle, draft, tokenizer):
        raise OptionError(
            f"{draft.folder} has another tokenizer than {bundle.folder}: the ids of its tokens mean something else. "
            "A draft model is a smaller one of the same family."
        )
    context = min(draft.manifest.architecture.context_length, options.context or 1 << 30)
    alone = replace(options, draft=None, max_concurrency=1, context=context, kv_memory=None, kv_dtype="auto")
    return load_executor(draft, draft.manifest.target.provider, alone)


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

    if (options.speculation or options.draft) and not executor.can_give_all_logits:
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
    from .cache.blocks import DEFAULT_BLOCK, BlockPool

    states, per_token = states_of(executor), executor.bytes_per_token
    row_bytes = states.state_bytes if states else 0
    everything = executor.slots * (executor.capacity * per_token + row_bytes)
    held = getattr(executor, "kv_budget", None)  # on a GPU the slots are as long as the memory there allows
    budget = held or options.kv_memory or min(everything, int(available_memory() * _KV_SHARE))
    block_tokens = getattr(executor, "block_tokens", DEFAULT_BLOCK)
    pool = BlockPool.of_bytes(budget, per_token, block_tokens, row_bytes)
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
