"""ONNX Runtime at the border: its sessions and providers, with its exceptions turned into ours."""

import functools
import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..bundle.bundle import Bundle
from ..bundle.manifest import Graph
from ..bundle.tensor_specs import TensorSpec
from ..errors import (
    BundleError,
    DeviceLostError,
    DeviceMemoryError,
    ExecutionError,
    ManifestError,
    MissingDependencyError,
    OnnxlmError,
    ProviderError,
)
from ..host.machine import compute_threads
from .cuda_check import missing_for_cuda
from .providers import PROVIDERS, ProviderName

_SILENT = 4  # what is an error in a session is raised, too
_QUIET = 3  # errors only: warnings about initializers and cores are not for our users
_OUT_OF_MEMORY = ("out of memory", "Failed to allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
_CUDA_FAILURES = ("CUDA failure", "CUDA error", "CUBLAS failure", "CUBLAS_STATUS_", "CUDNN failure")
_ELEMENT_TYPES = {
    "tensor(float)": "float32", "tensor(float16)": "float16", "tensor(bfloat16)": "bfloat16", "tensor(int64)": "int64",
    "tensor(int32)": "int32", "tensor(int8)": "int8", "tensor(uint8)": "uint8",
}  # fmt: skip


@functools.cache
def onnxruntime() -> Any:
    """The onnxruntime module: imported on first use, quiet, with its telemetry off.

    Raises:
        MissingDependencyError: neither wheel is installed.
    """
    try:
        module = importlib.import_module("onnxruntime")
        module.set_default_logger_severity(_QUIET)
        module.disable_telemetry_events()
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"ONNX Runtime is not installed ({error}). Install exactly one of the two wheels: "
            "pip install 'onnxlm[cpu]', or pip install 'onnxlm[gpu]' for an NVIDIA GPU."
        ) from error
    return module


def choose_provider(requested: str, bundle: Bundle) -> ProviderName:
    """The provider to run a bundle on. "auto" is the one it was built for; there is never a fall-back to another.

    Raises:
        ProviderError: an unknown name, a provider that cannot start here, or one the bundle was not built for.
    """
    built_for = bundle.manifest.target.provider
    provider = built_for if requested == "auto" else requested
    if provider not in PROVIDERS:
        built = f"{bundle.folder} was built for {built_for!r}. " if requested == "auto" else ""
        raise ProviderError(f"{built}Provider {provider!r} is not known; choose auto, {' or '.join(PROVIDERS)}.")
    require_provider(provider)
    if provider != built_for:
        raise ProviderError(
            f"{bundle.folder} was built for {built_for}, not for {provider}: operators and types differ. "
            f"Export the model again with --target {provider}."
        )
    return provider


def require_provider(provider: ProviderName) -> None:
    """Raise ProviderError, naming what is missing, unless the provider can start on this machine."""
    module = onnxruntime()
    if provider == "cuda" and (missing := missing_for_cuda(module)):
        raise ProviderError(f"provider='cuda' cannot start: {missing}")


def open_session(
    path: Path,
    provider: ProviderName = "cpu",
    threads: int | None = None,
    settings: dict[str, str] | None = None,
    optimized: Path | None = None,
    profile: Path | None = None,
    stream: int | None = None,
    as_stored: bool = False,
) -> Any:
    """Load one ONNX file.

    Args:
        path: the graph; its external data lies beside it.
        provider: where it runs.
        threads: threads inside one run; None is the number of physical cores that this process may use.
        settings: further entries of ONNX Runtime's session configuration.
        optimized: write the graph here as it is run.
        profile: beginning of the name of a file for ONNX Runtime's profile.
        stream: the CUDA stream to compute on; None is one of the session's own.
        as_stored: the graph was optimized before it was written: do not look for what can be optimized.

    Raises:
        ExecutionError: ONNX Runtime refuses the file.
        ProviderError: the session came up without the provider.
    """
    options = _session_options(threads, dict(settings or {}), as_stored=as_stored)
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    if provider == "cuda":  # else the weights stay in an arena, whose regions are as large as its largest request
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    providers = provider_list(provider, stream)
    with translated(f"loading {path}"):  # without enable_fallback=0 a failure prints, and the CPU takes over
        session = onnxruntime().InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    if PROVIDERS[provider] not in session.get_providers():
        raise ProviderError(f"provider={provider!r} did not start for {path}; run `onnxlm doctor` to see why.")
    return session


def _session_options(threads: int | None, settings: dict[str, str], *, as_stored: bool) -> Any:
    """Options of any session, on either provider."""
    module = onnxruntime()
    options = module.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = threads or compute_threads()
    options.enable_mem_pattern = False  # a plan per input shape would be kept for every prompt length ever seen
    for key, value in settings.items():
        options.add_session_config_entry(key, value)
    if as_stored:
        options.graph_optimization_level = module.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn whatever ONNX Runtime raises into ExecutionError; its exceptions share no base but Exception."""
    try:
        yield
    except (MemoryError, KeyboardInterrupt, OnnxlmError):
        raise
    except Exception as error:  # the border: pybind classes derive from Exception alone
        raise _ours(doing, error) from error


def _ours(doing: str, error: Exception) -> ExecutionError:
    """What went wrong, by what the CUDA provider writes: it has no codes of its own."""
    text = str(error)
    cuda = re.search(r"(?:CUDA|CUBLAS|CUDNN) (?:failure|error) [^;]*|Failed to allocate memory[^;\n]*", text)
    message = f"ONNX Runtime failed while {doing}: {cuda[0].strip() if cuda else _first_line(error)}"
    if any(words in text for words in _OUT_OF_MEMORY):
        return DeviceMemoryError(f"{message}. Lower --kv-memory, --max-concurrency or --prefill-chunk.")
    if any(words in text for words in _CUDA_FAILURES):
        return DeviceLostError(f"{message}. This process cannot use the GPU any more: restart it.")
    return ExecutionError(message)


def check_session(session: Any, graph: Graph) -> None:
    """Raise ManifestError unless the session's inputs and outputs are those of the manifest, by name and type."""
    _check_side(graph.file, "input", session.get_inputs(), graph.inputs)
    _check_side(graph.file, "output", session.get_outputs(), graph.outputs)


@functools.cache
def operator_has_input(operator: str, name: str) -> bool:
    """Whether this ONNX Runtime's schema of a com.microsoft operator has an input of that name."""
    onnxruntime()
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = [s for s in state.get_all_operator_schema() if s.name == operator and s.domain == "com.microsoft"]
    return any(port.name == name for schema in schemas for port in schema.inputs)


def require_query_seqlens(where: Path) -> None:
    """Raise BundleError unless this ONNX Runtime takes chunks of several sequences at once."""
    if not operator_has_input("GroupQueryAttention", "query_seqlens"):
        raise BundleError(
            f"{where} was exported for ONNX Runtime 1.32 and later: its prefill takes chunks of several sequences "
            f"(query_seqlens), which ONNX Runtime {onnxruntime().__version__} cannot. Upgrade ONNX Runtime, or "
            "export the model again with --target-ort 1.31."
        )


def provider_list(provider: ProviderName, stream: int | None = None) -> list[Any]:
    """As a session takes them, the CPU last; `stream`: of CUDA, to compute on."""
    if provider != "cuda":
        return list(dict.fromkeys([PROVIDERS[provider], PROVIDERS["cpu"]]))
    # The arena must grow by what is asked for: doubling it would take the memory that keys and values need.
    settings = {"arena_extend_strategy": "kSameAsRequested"}
    if stream is not None:
        settings["user_compute_stream"] = str(stream)
    return [(PROVIDERS["cuda"], settings), PROVIDERS["cpu"]]


def _check_side(file: str, kind: str, actual: Sequence[Any], ports: Sequence[TensorSpec]) -> None:
    found = {node.name: node for node in actual}
    expected = {port.name for port in ports}
    if found.keys() != expected:
        missing, extra = sorted(expected - found.keys()), sorted(found.keys() - expected)
        raise ManifestError(
            f"{file}: the graph's {kind}s are not those of the manifest (missing {missing[:3]}, "
            f"unexpected {extra[:3]}). Graph and manifest are from different exports: export again."
        )
    for port in ports:
        node = found[port.name]
        sizes = [a if isinstance(a, int) else None for a in node.shape]
        wanted = [s if isinstance(s, int) else None for s in port.shape]
        if _ELEMENT_TYPES.get(node.type) != port.dtype or sizes != wanted:
            raise ManifestError(
                f"{file}: {kind} {port.name} is {node.type} {node.shape} in the graph, and {port.dtype} "
                f"{list(port.shape)} in the manifest. Export again."
            )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
