"""manifest.json: what a bundle holds, as frozen dataclasses. FORMAT.md is the specification of this file."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import FormatVersionError, ManifestError
from . import json_codec
from .kv_layout import kv_bytes_per_token, state_bytes
from .sequence_task import SequenceTask
from .tensor_specs import DTYPE_BITS, DType, Phase, TensorSpec, check_ports, check_sequence_ports

__all__ = [
    "DTYPE_BITS",
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "MAX_MANIFEST_BYTES",
    "READABLE_VERSIONS",
    "Architecture",
    "Calibration",
    "DType",
    "FileEntry",
    "Graph",
    "Graphs",
    "KVCache",
    "Layer",
    "Manifest",
    "Producer",
    "Quality",
    "Quantization",
    "QuantizedTensor",
    "Source",
    "Target",
    "TensorSpec",
    "Tokens",
    "Verification",
    "dump_manifest",
    "parse_manifest",
]  # fmt: skip

FORMAT_VERSION = 1
READABLE_VERSIONS = (1,)  # FORMAT_VERSION and the one before it, once there is one
MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 16 << 20

_PLAIN_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*(/[A-Za-z0-9_][A-Za-z0-9_.\-]*)*")
_MAX_PATH = 200
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ORT_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){1,2}")
_PROVIDER = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Producer:
    """Who wrote the bundle."""

    name: str
    version: str


@dataclass(frozen=True)
class Layer:
    """Attention of one decoder layer. `window`: each query sees the last `window` positions, itself included."""

    attention: Literal["full", "sliding"]
    window: int | None
    num_heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        _at_least_one(num_heads=self.num_heads, kv_heads=self.kv_heads, head_dim=self.head_dim)
        if self.num_heads % self.kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of kv_heads {self.kv_heads}")
        if (self.attention == "sliding") != (self.window is not None):
            raise ValueError("window must be given for sliding attention, and only for it")
        if self.window is not None:
            _at_least_one(window=self.window)


@dataclass(frozen=True)
class Architecture:
    """Sizes of the decoder; `parameters` counts each weight once, tied tables too."""

    model_type: str
    hidden_size: int
    vocab_size: int
    context_length: int
    parameters: int
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        _at_least_one(
            hidden_size=self.hidden_size, vocab_size=self.vocab_size,
            context_length=self.context_length, parameters=self.parameters, layers=len(self.layers),
        )  # fmt: skip

    @property
    def cache_rows(self) -> tuple[tuple[int, int], ...]:
        """(kv_heads, head_dim) of each layer: the sizes that its keys and values have."""
        return tuple((layer.kv_heads, layer.head_dim) for layer in self.layers)


@dataclass(frozen=True)
class Graph:
    """One ONNX file with its inputs and outputs."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Graphs:
    """The graphs over the same weights. One that reads whole texts needs no `decode`; `paged` has blocks."""

    prefill: Graph
    decode: Graph | None = None
    paged: Graph | None = None

    @property
    def present(self) -> dict[Phase, Graph]:
        """Those that there are."""
        every: dict[Phase, Graph | None] = {"prefill": self.prefill, "decode": self.decode, "paged": self.paged}
        return {phase: graph for phase, graph in every.items() if graph is not None}


@dataclass(frozen=True)
class KVCache:
    """How keys and values are stored; `bytes_per_token` sums keys and values of all layers.

    `bits` is given where it is not that of `dtype`: 4 means two codes in a uint8. `calibration` says what the scales of
    int8 and 4-bit codes were measured on.
    """

    layout: Literal["batch,kv_heads,capacity,head_dim"]
    dtype: DType
    bytes_per_token: int
    bits: Literal[4] | None = None
    calibration: "Calibration | None" = None

    def __post_init__(self) -> None:
        _at_least_one(bytes_per_token=self.bytes_per_token)
        if self.bits is not None and self.dtype != "uint8":
            raise ValueError(f"bits 4 are stored in uint8, not in {self.dtype}")

    @property
    def stored_bits(self) -> int:
        """Bits of one key or value channel."""
        return self.bits or DTYPE_BITS[self.dtype]


@dataclass(frozen=True)
class Tokens:
    """Ids with a meaning. Generation stops at any of `eos`; `special` are the ids that decoding skips."""

    bos: int | None
    eos: tuple[int, ...]
    pad: int | None
    special: tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """What the graphs were built for: provider, activation type, oldest ONNX Runtime, operators used."""

    provider: str
    dtype: DType
    min_onnxruntime: str
    operators: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _PROVIDER.fullmatch(self.provider):
            raise ValueError(f"provider must be a name such as cpu or cuda, got {self.provider!r}")
        if not _ORT_VERSION.fullmatch(self.min_onnxruntime):
            raise ValueError(f"min_onnxruntime must look like 1.31 or 1.31.1, got {self.min_onnxruntime!r}")


@dataclass(frozen=True)
class QuantizedTensor:
    """How one weight matrix is stored; `relative_error` is ‖W − Ŵ‖ / ‖W‖, `bytes` counts codes, scales, zero points.

    `float_inputs` of the matrix's inputs are left out of the codes and multiplied in floating point.
    """

    name: str
    bits: int
    group_size: int
    symmetric: bool
    outliers: int
    bytes: int
    relative_error: float
    float_inputs: int = 0

    def __post_init__(self) -> None:
        _at_least_one(bits=self.bits, bytes=self.bytes)
        _at_least_zero(group_size=self.group_size, outliers=self.outliers, relative_error=self.relative_error)
        _at_least_zero(float_inputs=self.float_inputs)


@dataclass(frozen=True)
class Calibration:
    """What the quantizer looked at; `source` is "none" when it needed no data."""

    source: str
    tokens: int

    def __post_init__(self) -> None:
        _at_least_zero(tokens=self.tokens)


@dataclass(frozen=True)
class Quantization:
    """`recipe` reproduces the weights from the source bundle; `tensors` says what each one became."""

    recipe: dict[str, Any]
    calibration: Calibration
    tensors: tuple[QuantizedTensor, ...]


@dataclass(frozen=True)
class Quality:
    """Measured against the unquantized bundle: KL in nats per token, top-1 agreement as a share of positions."""

    kl: float
    kl_p99: float
    top1: float
    perplexity: float
    reference_perplexity: float
    text: str
    tokens: int
    onnxruntime: str

    def __post_init__(self) -> None:
        _at_least_one(tokens=self.tokens)
        if not 0 <= self.top1 <= 1:
            raise ValueError(f"top1 is a share between 0 and 1, got {self.top1}")


@dataclass(frozen=True)
class Verification:
    """How the exporter checked the graphs; differences are absolute, on logits. "module": a live model itself."""

    method: Literal["transformers", "module", "self-consistency", "none"]
    max_difference: float | None


@dataclass(frozen=True)
class Source:
    """Where the weights come from. `sha256` hashes the single file, or the sorted list of file hashes."""

    name: str
    format: str
    revision: str | None
    sha256: str | None
    licence: str | None

    def __post_init__(self) -> None:
        if self.sha256 is not None:
            _require_sha256(self.sha256)


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 of one file of the bundle."""

    size: int
    sha256: str

    def __post_init__(self) -> None:
        _at_least_zero(size=self.size)
        _require_sha256(self.sha256)


@dataclass(frozen=True)
class Manifest:
    """The whole of manifest.json."""

    format_version: int
    producer: Producer
    architecture: Architecture
    graphs: Graphs
    kv_cache: KVCache
    tokens: Tokens
    target: Target
    source: Source
    verification: Verification
    quantization: Quantization | None = None
    quality: Quality | None = None
    task: SequenceTask | None = None
    files: dict[str, FileEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format_version != FORMAT_VERSION:
            raise ValueError(f"format_version must be {FORMAT_VERSION}, got {self.format_version}")
        self._check_files()
        self._check_graphs()
        self._check_tokens()

    @property
    def state_bytes(self) -> int:
        """Bytes of the states that layers without attention keep of one sequence, once; 0 where there are none."""
        states = (port.shape[1:] for port in self.graphs.prefill.inputs if port.role == "past_state")
        return state_bytes([[int(size) for size in shape] for shape in states])

    @property
    def bits_per_weight(self) -> float:
        """Bits of weights.bin, padding included, for each parameter of the model."""
        return 8 * self.files["weights.bin"].size / self.architecture.parameters

    def _check_files(self) -> None:
        for name in [*self.files, *(graph.file for graph in self.graphs.present.values())]:
            _require_plain_path(name)
        if len({name.lower() for name in self.files}) < len(self.files):
            raise ValueError("files: two names differ only in case, and would be one file on some systems")

    def _check_graphs(self) -> None:
        rows, cache = self.architecture.cache_rows, self.kv_cache
        if (self.task is None) != (self.graphs.decode is not None):
            raise ValueError("graphs: decode belongs to a model that generates, and to no other (task)")
        for phase, graph in self.graphs.present.items():
            if self.task is not None:
                check_sequence_ports(graph.inputs, graph.outputs, self.task.output_role, self.task.width)
                continue
            stored = [(heads, width * cache.stored_bits // DTYPE_BITS[cache.dtype]) for heads, width in rows]
            check_ports(phase, graph.inputs, graph.outputs, stored, cache.dtype, self.architecture.vocab_size)
        expected = kv_bytes_per_token(rows, cache.stored_bits)
        if cache.bytes_per_token != expected:
            raise ValueError(
                f"kv_cache: bytes_per_token is {cache.bytes_per_token}, but the layers need {expected} in {cache.dtype}"
            )

    def _check_tokens(self) -> None:
        ids = [*self.tokens.eos, *self.tokens.special]
        ids += [i for i in (self.tokens.bos, self.tokens.pad) if i is not None]
        wrong = [i for i in ids if not 0 <= i < self.architecture.vocab_size]
        if wrong:
            raise ValueError(f"tokens: id {wrong[0]} is outside the vocabulary of {self.architecture.vocab_size}")


def parse_manifest(text: str) -> Manifest:
    """Read the text of manifest.json.

    Raises:
        FormatVersionError: another format version.
        ManifestError: anything else that is not exactly the format.
    """
    try:
        raw = json_codec.loads(text)
        _require_readable_version(raw)
        return json_codec.decode(Manifest, raw)
    except json_codec.StrictJsonError as error:
        raise ManifestError(f"{MANIFEST_NAME}: {error}. Export the model again, or copy the bundle again.") from error


def dump_manifest(manifest: Manifest) -> str:
    """The text of manifest.json, keys in the order of FORMAT.md."""
    return json.dumps(json_codec.encode(manifest), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _require_readable_version(raw: Any) -> None:
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if type(version) is not int:
        raise json_codec.StrictJsonError("format_version: missing or not an integer; this is not an onnxlm manifest")
    if version not in READABLE_VERSIONS:
        advice = "upgrade onnxlm" if version > FORMAT_VERSION else "export the model again"
        raise FormatVersionError(
            f"{MANIFEST_NAME}: format_version {version} is not readable by this onnxlm, "
            f"which reads {', '.join(map(str, READABLE_VERSIONS))}: {advice}."
        )


def _require_plain_path(name: str) -> None:
    if not _PLAIN_PATH.fullmatch(name) or len(name) > _MAX_PATH or name.lower() == MANIFEST_NAME:
        shown = repr(name[:_MAX_PATH])
        raise ValueError(f"files: {shown} is not a plain path inside the bundle (letters, digits, . _ - and /)")


def _require_sha256(text: str) -> None:
    if not _SHA256.fullmatch(text):
        raise ValueError(f"sha256 must be 64 lower-case hexadecimal digits, got {text[:70]!r}")


def _at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _at_least_zero(**values: float) -> None:
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name} must not be negative, got {value}")
