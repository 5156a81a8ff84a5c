"""What goes in and out of the two graphs, by role: the table that a manifest's graphs are checked against."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Phase = Literal["prefill", "decode", "paged"]
Role = Literal[
    "input_ids", "seqlens_k", "total_sequence_length", "logits_index", "query_seqlens", "past_key", "past_value",
    "logits", "present_key", "present_value", "past_state", "present_state", "embeddings", "scores",
    "lora_mask", "lora_a", "lora_b",
    "cumulative_sequence_length", "past_seqlens", "block_table", "attention_metadata", "position_ids", "last_positions",
]  # fmt: skip
DType = Literal["float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8"]
DTYPE_BITS: dict[str, int] = {
    "float32": 32, "float16": 16, "bfloat16": 16, "int64": 64, "int32": 32, "int8": 8, "uint8": 8,
}  # fmt: skip
FLOATS = ("float32", "float16", "bfloat16")
ANY = 0  # in the shape of an Expected: whatever fixed size a graph has

INPUT_ROLES: dict[Phase, tuple[Role, ...]] = {
    "prefill": ("input_ids", "seqlens_k", "total_sequence_length", "logits_index"),
    "decode": ("input_ids", "seqlens_k", "total_sequence_length"),
    "paged": (
        "input_ids", "cumulative_sequence_length", "past_seqlens", "block_table", "attention_metadata", "logits_index",
    ),
}  # fmt: skip
OPTIONAL_INPUTS: dict[Phase, tuple[Role, ...]] = {
    "prefill": ("query_seqlens",), "decode": (), "paged": ("position_ids", "last_positions"),
}  # fmt: skip
CACHE_ROLES: tuple[tuple[Role, Role], ...] = (("past_key", "present_key"), ("past_value", "present_value"))


@dataclass(frozen=True)
class TensorSpec:
    """One graph input or output. `shape` mixes sizes and symbols ("batch", "sequence", "selected", "capacity")."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    role: Role

    def __post_init__(self) -> None:
        if not self.name or not all(_is_dimension(size) for size in self.shape):
            raise ValueError(f"a port needs a name and sizes that are symbols or at least 1, got {self}")


@dataclass(frozen=True)
class Expected:
    """What a port of one role must be; a symbol in `shape` stands for any size, named or not."""

    dtypes: tuple[str, ...]
    shape: tuple[int | str, ...]

    def check(self, port: TensorSpec, where: str) -> None:
        """Raise ValueError if `port` cannot be this."""
        same_rank = len(port.shape) == len(self.shape)
        if not same_rank or any(not _fits(got, wanted) for got, wanted in zip(port.shape, self.shape, strict=True)):
            raise ValueError(f"{where}: {port.name} has shape {list(port.shape)}, not {list(self.shape)}")
        if port.dtype not in self.dtypes:
            raise ValueError(f"{where}: {port.name} is {port.dtype}, not {' or '.join(self.dtypes)}")


def check_ports(
    phase: Phase,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    cache: Sequence[tuple[int, int]],
    cache_dtype: DType,
    vocab_size: int,
) -> None:
    """Check that a graph has exactly the ports of its phase.

    Args:
        phase: which of the two graphs.
        inputs, outputs: the ports of the manifest.
        cache: (kv_heads, head_dim) of each layer; the cache ports of a role stand in the order of the layers.
        cache_dtype: element type of the cache.
        vocab_size: width of the logits.

    Raises:
        ValueError: names the graph, the port and what it should be.
    """
    states = _state_ports(f"graphs.{phase}.inputs", inputs)
    adapters = _adapter_ports(f"graphs.{phase}.inputs", inputs)
    expected_inputs = {
        **adapters,
        **_plain_inputs(phase, inputs),
        **_cache_ports("past", phase, cache, cache_dtype),
        "past_state": states,
    }
    expected_outputs = {
        "present_state": states,
        "logits": [Expected(FLOATS, ("batch" if phase == "decode" else "selected", vocab_size))],
        **_cache_ports("present", phase, cache, cache_dtype),
    }
    _check_side(f"graphs.{phase}.inputs", inputs, expected_inputs)
    _check_side(f"graphs.{phase}.outputs", outputs, expected_outputs)


def check_sequence_ports(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], role: Role, width: int) -> None:
    """Raise ValueError unless these are the ports of a graph that reads whole texts and gives `width` numbers each."""
    expected: dict[str, list[Expected]] = {role: [Expected(("float32",), ("batch", width))]}
    _check_side("graphs.prefill.inputs", inputs, _plain_inputs("decode", inputs, width="sequence"))
    _check_side("graphs.prefill.outputs", outputs, expected)


def _plain_inputs(
    phase: Phase, inputs: Sequence[TensorSpec], width: int | str | None = None
) -> dict[str, list[Expected]]:
    sequence = width or ("sequence" if phase == "prefill" else 1)
    ids: tuple[int | str, ...] = (1, "tokens") if phase == "paged" else ("batch", sequence)
    plain = {
        "input_ids": Expected(("int64",), ids),
        "seqlens_k": Expected(("int32",), ("batch",)),
        "total_sequence_length": Expected(("int32",), ()),
        "logits_index": Expected(("int64",), ("selected", 2)),
        "query_seqlens": Expected(("int32",), ("batch",)),
        "cumulative_sequence_length": Expected(("int32",), ("boundaries",)),
        "past_seqlens": Expected(("int32",), ("sequences",)),
        "block_table": Expected(("int32",), ("sequences", "blocks")),
        "attention_metadata": Expected(("int32",), (2,)),
        "position_ids": Expected(("int64",), (1, "tokens")),
        "last_positions": Expected(("int64",), (1, "tokens")),
    }
    given = {port.role for port in inputs}
    optional = (role for role in OPTIONAL_INPUTS[phase] if role in given)
    return {role: [plain[role]] for role in (*INPUT_ROLES[phase], *optional)}


def _cache_ports(
    prefix: str, phase: Phase, cache: Sequence[tuple[int, int]], dtype: DType
) -> dict[str, list[Expected]]:
    """In rows, `[batch, kv_heads, capacity, head_dim]`, or in blocks, `[num_blocks, block, kv_heads, head_dim]`."""
    if phase == "paged":
        rows = [Expected((dtype,), ("num_blocks", ANY, kv_heads, head_dim)) for kv_heads, head_dim in cache]
    else:
        rows = [Expected((dtype,), ("batch", kv_heads, "capacity", head_dim)) for kv_heads, head_dim in cache]
    return {f"{prefix}_key": rows, f"{prefix}_value": rows}


def _adapter_ports(where: str, inputs: Sequence[TensorSpec]) -> dict[str, list[Expected]]:
    """What a graph must have that takes LoRA adapters: pairs of matrices, and a mask for each kind of module."""
    first, second = ([port for port in inputs if port.role == role] for role in ("lora_a", "lora_b"))
    names = [[port.name.rpartition(".")[0] for port in ports] for ports in (first, second)]
    if names[0] != names[1]:
        raise ValueError(f"{where}: the inputs lora_a and lora_b are not pairs")
    masks = [port.name.removeprefix("lora_mask.") for port in inputs if port.role == "lora_mask"]
    if {".".join(name.split(".")[3:]) for name in names[0]} != set(masks):
        raise ValueError(f"{where}: the inputs lora_mask are not those of the modules that take adapters")
    return {
        "lora_mask": [Expected(("float32",), ("batch", "rank")) for _ in masks],
        "lora_a": [Expected(("float32",), (port.shape[0], "rank")) for port in first],
        "lora_b": [Expected(("float32",), ("rank", port.shape[1])) for port in second],
    }


def _state_ports(where: str, inputs: Sequence[TensorSpec]) -> list[Expected]:
    """What each present state must be: like the past state in its place, of a fixed size per sequence."""
    states = [port for port in inputs if port.role == "past_state"]
    for port in states:
        if len(port.shape) < 2 or any(isinstance(size, str) for size in port.shape[1:]):
            raise ValueError(f"{where}: the state {port.name} must have fixed sizes behind its batch")
    return [Expected(("float32",), ("batch", *port.shape[1:])) for port in states]


def _check_side(where: str, ports: Sequence[TensorSpec], expected: dict[str, list[Expected]]) -> None:
    twice = [name for name, count in Counter(port.name for port in ports).items() if count > 1]
    if twice:
        raise ValueError(f"{where}: the name {twice[0]!r} appears twice")
    stray = [port for port in ports if port.role not in expected]
    if stray:
        raise ValueError(f"{where}: {stray[0].name} has the role {stray[0].role}, which does not belong here")
    for role, wanted in expected.items():
        found = [port for port in ports if port.role == role]
        if len(found) != len(wanted):
            raise ValueError(f"{where}: {len(found)} ports of role {role}, not {len(wanted)}")
        for port, shape in zip(found, wanted, strict=True):
            shape.check(port, where)


def cache_pairs(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Iterator[tuple[TensorSpec, TensorSpec]]:
    """Each cache input with the output that is bound to the same memory: all keys, then all values, layer by layer."""
    for past, present in CACHE_ROLES:
        yield from _pairs(inputs, outputs, past, present)


def state_pairs(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Iterator[tuple[TensorSpec, TensorSpec]]:
    """Each state input with the output that is its new value, layer by layer."""
    yield from _pairs(inputs, outputs, "past_state", "present_state")


def _pairs(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], past: Role, present: Role
) -> Iterator[tuple[TensorSpec, TensorSpec]]:
    pasts, presents = ((p for p in inputs if p.role == past), (p for p in outputs if p.role == present))
    yield from zip(pasts, presents, strict=True)


def _is_dimension(size: int | str) -> bool:
    return bool(size) if isinstance(size, str) else size >= 1


def _fits(got: int | str, wanted: int | str) -> bool:
    if wanted == ANY:
        return isinstance(got, int)
    return isinstance(got, str) if isinstance(wanted, str) else got == wanted
