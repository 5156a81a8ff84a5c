"""Run language models on ONNX Runtime with continuous batching.

Example:
    >>> import runtime
    >>> with runtime.LLM("smol-int4") as llm:
    ...     print(llm.generate("The capital of France is", runtime.SamplingParams(max_tokens=8)).text)
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .chat.formats.format import ToolCall
    from .chat.function_schema import function_schema
    from .chat.options import ChatOptions
    from .embedder import Embedder
    from .engine.engine import EngineStats
    from .engine.generation import OutputDelta
    from .engine.handle import RequestHandle
    from .errors import (
        BundleError,
        ChatTemplateError,
        CheckpointError,
        DeviceLostError,
        DeviceMemoryError,
        EngineClosedError,
        ExecutionError,
        FormatVersionError,
        IntegrityError,
        ManifestError,
        MissingDependencyError,
        OnnxlmError,
        OptionError,
        PromptTooLongError,
        ProviderError,
        QuantizationError,
        QueueFullError,
        RequestError,
        UnsupportedError,
        VerificationError,
    )
    from .llm import LLM
    from .options import EngineOptions, SamplingParams
    from .outputs import Completion, Score
    from .reranker import RankedDocument, Reranker
    from .sampling.grammar import StructuredOutput

__all__ = [
    "LLM",
    "AsyncLLM",
    "BundleError",
    "ChatOptions",
    "ChatTemplateError",
    "CheckpointError",
    "Completion",
    "DeviceLostError",
    "DeviceMemoryError",
    "Embedder",
    "EngineClosedError",
    "EngineOptions",
    "EngineStats",
    "ExecutionError",
    "FormatVersionError",
    "IntegrityError",
    "ManifestError",
    "MissingDependencyError",
    "OnnxlmError",
    "OptionError",
    "OutputDelta",
    "PromptTooLongError",
    "ProviderError",
    "QuantizationError",
    "QueueFullError",
    "RankedDocument",
    "RequestError",
    "RequestHandle",
    "Reranker",
    "SamplingParams",
    "Score",
    "StructuredOutput",
    "ToolCall",
    "UnsupportedError",
    "VerificationError",
    "function_schema",
]


# Where each name is; all others are errors. It is imported when it is asked for: `onnxlm --help` waits for nothing.
_MODULES = {
    ".async_llm": "AsyncLLM",
    ".chat.formats.format": "ToolCall",
    ".chat.function_schema": "function_schema",
    ".chat.options": "ChatOptions",
    ".embedder": "Embedder",
    ".engine.engine": "EngineStats",
    ".engine.generation": "OutputDelta",
    ".engine.handle": "RequestHandle",
    ".llm": "LLM",
    ".options": "EngineOptions SamplingParams",
    ".outputs": "Completion Score",
    ".reranker": "RankedDocument Reranker",
    ".sampling.grammar": "StructuredOutput",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a name on first use; old names, for one version."""
    if name == "Delta":
        from warnings import warn

        warn("runtime.Delta is now runtime.OutputDelta", DeprecationWarning, stacklevel=2)
        return __getattr__("OutputDelta")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(_import_module(_HOMES.get(name, ".errors"), __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
