"""Reads the outline of an ONNX file: its nodes and where its weights lie. Needs no onnx package, copies no weight.

Of protobuf's wire format only what ONNX uses is understood: varints, 32- and 64-bit words, byte strings. The field
numbers are those of onnx.proto3, which never change.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import IntegrityError
from ..host.byte_units import format_bytes

MAX_GRAPH_BYTES = 1 << 30

_GRAPH = 7  # of ModelProto
_NODE, _INITIALIZER = 1, 5  # of GraphProto
_INPUT, _OUTPUT, _NAME, _OP_TYPE, _ATTRIBUTE, _DOMAIN = 1, 2, 3, 4, 5, 7  # of NodeProto
_ATTRIBUTE_NAME, _ATTRIBUTE_INT = 1, 3  # of AttributeProto
_DIMS, _DATA_TYPE, _TENSOR_NAME, _RAW_DATA, _EXTERNAL_DATA = 1, 2, 8, 9, 13  # of TensorProto
_KEY, _VALUE = 1, 2  # of StringStringEntryProto
_PACKED = "prepacked_"  # followed by a number

# TensorProto.DataType → name and bits
_TYPES: dict[int, tuple[str, int]] = {
    1: ("float32", 32), 2: ("uint8", 8), 3: ("int8", 8), 4: ("uint16", 16), 5: ("int16", 16), 6: ("int32", 32),
    7: ("int64", 64), 9: ("bool", 8), 10: ("float16", 16), 11: ("float64", 64), 12: ("uint32", 32), 13: ("uint64", 64),
    16: ("bfloat16", 16), 17: ("float8e4m3fn", 8), 21: ("uint4", 4), 22: ("int4", 4),
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One operator of the graph, with its integer attributes."""

    name: str
    operator: str  # domain::Name; the default domain is ai.onnx
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: dict[str, int]


@dataclass(frozen=True)
class Initializer:
    """One weight or constant. `location` is the file beside the graph that holds it, None when the graph does.

    `packed` counts the bytes of its packed form in the same file, where the graph was prepared for a processor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    location: str | None
    offset: int
    packed: int = 0

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class GraphOutline:
    """The nodes and initializers of one ONNX file."""

    nodes: tuple[Node, ...]
    initializers: tuple[Initializer, ...]


def read_outline(path: Path) -> GraphOutline:
    """Read the outline of an ONNX file; IntegrityError if it is none."""
    try:
        if path.stat().st_size > MAX_GRAPH_BYTES:
            raise IntegrityError(f"{path}: larger than {format_bytes(MAX_GRAPH_BYTES)}; graphs hold no weights.")
        model = memoryview(path.read_bytes())
        graphs = [value for field, value in _fields(model) if field == _GRAPH and isinstance(value, memoryview)]
        if len(graphs) != 1:
            raise ValueError(f"{len(graphs)} graphs instead of 1")
        return _read_graph(graphs[0])
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:  # UnicodeDecodeError too
        raise IntegrityError(f"{path}: not an ONNX file ({error}). Copy the bundle again.") from error


def _read_graph(graph: memoryview) -> GraphOutline:
    nodes, initializers = [], []
    for field, value in _fields(graph):
        if field == _NODE:
            nodes.append(_read_node(_bytes(value)))
        elif field == _INITIALIZER:
            initializers.append(_read_initializer(_bytes(value)))
    return GraphOutline(tuple(nodes), tuple(initializers))


def _read_node(node: memoryview) -> Node:
    texts: dict[int, list[str]] = {_INPUT: [], _OUTPUT: [], _NAME: [], _OP_TYPE: [], _DOMAIN: []}
    integers = {}
    for field, value in _fields(node):
        if field in texts:
            texts[field].append(_text(value))
        elif field == _ATTRIBUTE:
            integers.update(_read_integer(_bytes(value)))
    domain = "".join(texts[_DOMAIN]) or "ai.onnx"
    operator = f"{domain}::{''.join(texts[_OP_TYPE])}"
    return Node("".join(texts[_NAME]), operator, tuple(texts[_INPUT]), tuple(texts[_OUTPUT]), integers)


def _read_integer(attribute: memoryview) -> dict[str, int]:
    fields = dict(_fields(attribute))
    number = fields.get(_ATTRIBUTE_INT)
    return {_text(fields.get(_ATTRIBUTE_NAME, b"")): number} if isinstance(number, int) else {}


def _read_initializer(tensor: memoryview) -> Initializer:
    shape: list[int] = []
    name, kind, raw, external = "", 0, 0, {}
    for field, value in _fields(tensor):
        if field == _DIMS:
            shape += [value] if isinstance(value, int) else _varints(value)
        elif field == _DATA_TYPE and isinstance(value, int):
            kind = value
        elif field == _TENSOR_NAME:
            name = _text(value)
        elif field == _RAW_DATA:
            raw = len(_bytes(value))
        elif field == _EXTERNAL_DATA:
            entry = dict(_fields(_bytes(value)))
            external[_text(entry.get(_KEY, b""))] = _text(entry.get(_VALUE, b""))
    dtype, bits = _TYPES.get(kind, (f"type {kind}", 8))
    nbytes = int(external.get("length", raw or math.prod(shape) * bits // 8))
    packed = sum(_packed_bytes(text) for key, text in external.items() if key.startswith(_PACKED))
    return Initializer(
        name, dtype, tuple(shape), nbytes, external.get("location"), int(external.get("offset", 0)), packed
    )


def _packed_bytes(entry: str) -> int:
    """Of "kernel and hash|offset;length;checksum|…", the lengths: what ONNX Runtime 1.31 and later write."""
    return sum(int(blob.split(";")[1]) for blob in entry.split("|")[1:] if blob)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Each field of a protobuf message: its number, and an integer or the bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            number, at = _varint(message, at)
            yield field, number
            continue
        size, at = {1: (8, at), 5: (4, at)}.get(wire) or _size(message, at, wire)
        if size > len(message) - at:
            raise ValueError("cut short")
        yield field, message[at : at + size]
        at += size


def _size(message: memoryview, at: int, wire: int) -> tuple[int, int]:
    if wire != 2:
        raise ValueError(f"wire type {wire}")
    return _varint(message, at)


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("cut short")
        byte = message[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("an integer that does not end")


def _varints(packed: memoryview) -> list[int]:
    numbers, at = [], 0
    while at < len(packed):
        number, at = _varint(packed, at)
        numbers.append(number)
    return numbers


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")
    return value


def _text(value: int | memoryview | bytes) -> str:
    if isinstance(value, int):
        raise ValueError("a number where text belongs")
    return bytes(value).decode()
