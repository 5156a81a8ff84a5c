"""Every error that onnxlm raises on purpose.

OnnxlmError                      catch this one to catch them all
├── BundleError                  the folder is not a bundle that we can use
│   ├── ManifestError            manifest.json is missing, malformed or contradicts the graphs
│   │   └── FormatVersionError   written by a newer (or much older) onnxlm
│   └── IntegrityError           a file is missing, truncated, altered or outside the folder
├── CheckpointError              the source model cannot be read
│   └── UnsupportedError         it can be read, but this architecture, value or format is not supported
├── VerificationError            the exported graphs disagree with the reference
├── QuantizationError            the recipe cannot be applied to this bundle
├── ProviderError                the execution provider cannot start; never a silent fall-back
├── ExecutionError               a step failed inside ONNX Runtime
│   ├── DeviceMemoryError        the GPU has not enough memory for this; what was there before is untouched
│   ├── DeviceLostError          the GPU cannot be used by this process any more
│   └── EngineClosedError        the engine drains, is closed, or has failed: it takes no more requests
├── OptionError                  an option of the engine or a command is out of range
├── RequestError                 a request was refused before it reached the engine
│   ├── PromptTooLongError       prompt (plus max_tokens) does not fit the context
│   ├── ChatTemplateError        the chat template is missing or failed to render
│   └── QueueFullError           too much is waiting already: try again later
└── MissingDependencyError       an optional package is not installed

A message says what is wrong, where, what is accepted and what to do next. Foreign exceptions are translated at the
border where they appear, and chained with `from`.
"""


class OnnxlmError(Exception):
    """Base of all errors that onnxlm raises on purpose; the command line prints it and exits with `exit_code`."""

    exit_code = 1


class BundleError(OnnxlmError):
    """The folder is not a bundle that this version can use."""


class ManifestError(BundleError):
    """manifest.json is missing, malformed, or contradicts the graphs beside it."""


class FormatVersionError(ManifestError):
    """The bundle's `format_version` is one that this version does not read."""


class IntegrityError(BundleError):
    """A file of the bundle is missing, truncated, altered, or lies outside the folder."""


class CheckpointError(OnnxlmError):
    """The source checkpoint cannot be read: a file or tensor is missing, broken or contradictory."""


class UnsupportedError(CheckpointError):
    """The checkpoint is readable, but holds an architecture, value or format that is not supported."""


class VerificationError(OnnxlmError):
    """The exported graphs do not compute what the reference computes."""


class QuantizationError(OnnxlmError):
    """The quantization recipe is invalid or cannot be applied to this bundle."""


class ProviderError(OnnxlmError):
    """The requested execution provider cannot start on this machine."""


class ExecutionError(OnnxlmError):
    """ONNX Runtime failed while loading or running a graph."""


class DeviceMemoryError(ExecutionError):
    """The GPU has not enough free memory for this. Keys and values that were there before are untouched."""


class DeviceLostError(ExecutionError):
    """The GPU reported an error that ends its use by this process; only a new process can use it again.

    A server then answers 503, ends, and leaves this exit code to whoever restarts it (EX_TEMPFAIL of sysexits.h).
    """

    exit_code = 75


class EngineClosedError(ExecutionError):
    """The engine drains, is closed, or has failed, and takes no more requests."""


class OptionError(OnnxlmError):
    """An option of the engine or of a command is out of range or contradicts another."""


class RequestError(OnnxlmError):
    """A request was refused before it reached the engine."""


class PromptTooLongError(RequestError):
    """The prompt, or the prompt plus `max_tokens`, does not fit the model's context or the KV memory."""


class ChatTemplateError(RequestError):
    """The bundle has no chat template, or it failed to render these messages."""


class QueueFullError(RequestError):
    """The waiting queue is at its limit; the request may be tried again later."""


class MissingDependencyError(OnnxlmError):
    """An optional package is needed for this and is not installed."""
