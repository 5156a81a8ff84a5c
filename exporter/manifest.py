"""What the manifest says about a graph and its decoder."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from runtime.bundle.manifest import DTYPE_BITS, Architecture, DType, Graph, KVCache, Layer, Source, TensorSpec, Tokens
from runtime.bundle.manifest import Target as ManifestTarget

from .gc_pause import gc_paused

if TYPE_CHECKING:
    import onnx_ir as ir

    from models.decoder.description import Decoder
    from models.targets.target import Target

    from .checkpoint import Checkpoint
    from .weights.plan import Weight

NEWER = "1.32"  # what these were tested with
NEW_OPERATORS = frozenset({"com.microsoft::CausalConvWithState", "com.microsoft::LinearAttention"})

_ROLES: Mapping[str, str] = {"past_key_values.key": "past_key", "past_key_values.value": "past_value",
                             "present.key": "present_key", "present.value": "present_value"}  # fmt: skip


def describe_architecture(decoder: "Decoder", weights: "list[Weight]") -> Architecture:
    """The sizes of the decoder; parameters are counted from the checkpoint's tensors, each once."""
    from models.decoder.heads import head_layout

    # The cache is what the manifest's layers are about.
    layers = tuple(
        Layer(
            attention="full" if attention.window is None else "sliding",
            window=attention.window,
            num_heads=attention.num_heads,
            kv_heads=attention.kv_heads,
            head_dim=head_layout(attention).width,
        )
        for attention in decoder.caching.values()
    )
    return Architecture(
        model_type=decoder.model_type,
        hidden_size=decoder.hidden_size,
        vocab_size=decoder.vocab_size,
        context_length=decoder.context_length,
        parameters=count_parameters(weights),
        layers=layers,
    )


def count_parameters(weights: "list[Weight]") -> int:
    """Of the checkpoint's tensors, each once."""
    sources = {source.name: source for weight in weights for source in weight.sources}
    return sum(_count(source.shape) for source in sources.values())


def describe_graph(graph: "ir.Graph", file: str) -> Graph:
    """All inputs and outputs of a graph, with their roles."""
    return Graph(file, tuple(map(_port, graph.inputs)), tuple(map(_port, graph.outputs)))


def describe_cache(decoder: "Decoder", target: "Target") -> KVCache:
    """Bytes per token: keys and values of all layers, as wide as the graph's heads are."""
    from models.decoder.heads import head_layout

    wide = sum(2 * attention.kv_heads * head_layout(attention).width for attention in decoder.caching.values())
    return KVCache("batch,kv_heads,capacity,head_dim", target.dtype, wide * DTYPE_BITS[target.dtype] // 8)


def describe_target(target: "Target", graphs: "list[ir.Graph]") -> ManifestTarget:
    """The provider, and every operator the graphs use as `domain::operator`."""
    operators = {f"{node.domain or 'ai.onnx'}::{node.op_type}" for graph in graphs for node in graph}
    oldest = NEWER if operators & NEW_OPERATORS else target.onnxruntime
    return ManifestTarget(target.provider, target.dtype, oldest, tuple(sorted(operators)))


@gc_paused()
def describe_tokens(checkpoint: "Checkpoint", vocab_size: int) -> Tokens:
    """Ids with a meaning. A generation ends at the ends of generation_config, of the config and of the tokenizer."""
    from .tokenizer.folder import token_ids

    sources = (checkpoint.generation_config, checkpoint.config, token_ids(checkpoint.tokenizer_files))
    eos = dict.fromkeys(i for source in sources for i in _ids(source.get("eos_token_id")))
    special = _special_ids(checkpoint.tokenizer_files.get("tokenizer.json"))
    first = {
        key: next((i for source in sources for i in _ids(source.get(key))), None)
        for key in ("bos_token_id", "pad_token_id")
    }
    bos, pad = (value if value is None or value < vocab_size else None for value in first.values())
    return Tokens(bos, tuple(i for i in eos if i < vocab_size), pad, tuple(i for i in special if i < vocab_size))


def describe_source(checkpoint: "Checkpoint") -> Source:
    """Where the weights come from."""
    return Source(checkpoint.name, checkpoint.format, checkpoint.revision, checkpoint.sha256, checkpoint.licence)


def _port(value: "ir.Value") -> TensorSpec:
    assert value.name is not None
    assert value.shape is not None
    assert value.dtype is not None
    shape = tuple(size if isinstance(size, int) else str(size.value) for size in value.shape)
    # past_key_values.3.key → past_key_values.key; every other name is its own role
    kind = ".".join(part for part in value.name.split(".") if not part.isdecimal())
    factor = value.name.rpartition(".")[2]
    kind = factor if factor in ("lora_a", "lora_b") else "lora_mask" if kind.startswith("lora_mask.") else kind
    role = cast(Any, _ROLES.get(kind, kind))
    return TensorSpec(value.name, _NAMES[value.dtype.name], shape, role)


_NAMES: Mapping[str, DType] = {
    "FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "INT64": "int64", "INT32": "int32",
    "INT8": "int8", "UINT8": "uint8",
}  # fmt: skip


def _count(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _ids(value: Any) -> list[int]:
    """The ids of a key that holds one or several, or nothing; -1 stands for none."""
    return [i for i in (value if isinstance(value, list) else [value]) if type(i) is int and i >= 0]


def token_warnings(checkpoint: "Checkpoint", tokens: Tokens, vocab_size: int, *, generates: bool = True) -> list[str]:
    """What a user should know of the tokens."""
    told = []
    if generates and not tokens.eos:
        told.append(
            "nothing ends a generation: neither config.json, generation_config.json nor the tokenizer names an "
            "eos_token_id. Every answer runs to max_tokens; name it in generation_config.json and export again."
        )
    sources = (checkpoint.generation_config, checkpoint.config)
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    beyond = {
        f"{key} {i}": None for source in sources for key in keys for i in _ids(source.get(key)) if i >= vocab_size
    }
    if beyond:
        told.append(f"{', '.join(beyond)}: not used, as the ids of this model's tokens are 0 to {vocab_size - 1}.")
    count = _token_count(checkpoint.tokenizer_files.get("tokenizer.json"))
    if count > vocab_size:
        told.append(
            f"the tokenizer has ids up to {count - 1}, and the embedding rows for {vocab_size} tokens only: a prompt "
            "with such an id is refused, and none is generated."
        )
    return told


@gc_paused()
def _token_count(tokenizer: bytes | None) -> int:
    """One more than the largest id of a tokenizer.json."""
    if tokenizer is None:
        return 0
    from tokenizers import Tokenizer

    return 1 + max(Tokenizer.from_buffer(tokenizer).get_vocab(with_added_tokens=True).values(), default=-1)


def _special_ids(tokenizer: bytes | None) -> list[int]:
    import json

    if tokenizer is None:
        return []
    added = json.loads(tokenizer).get("added_tokens", [])
    return sorted(token["id"] for token in added if token.get("special"))
