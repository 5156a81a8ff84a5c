"""Which operators ONNX Runtime has kernels for, by provider and element types: the table that graphs are made by.

kernels.json holds, of each operator that graphs may use, what ONNX Runtime's CPU and GPU builds register: the type
names of its inputs and outputs, and for each kernel the element types of those names. `tests/bench/kernel_table.py`
writes it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

Kernel = Mapping[str, frozenset[str]]  # type name → element types


@dataclass(frozen=True)
class Operator:
    """An operator at the version that the graphs' opset has.

    Args:
        inputs, outputs: type names, or element types where there is no choice; a last one with "..." repeats.
        only: type names that stand for one element type.
        kernels: by provider.
    """

    since: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernels: Mapping[str, tuple[Kernel, ...]]
    only: Mapping[str, str] = field(default_factory=dict)

    def type_names(self, formal: Sequence[str], count: int) -> list[str]:
        """The type names of `count` inputs or outputs."""
        names = [*formal]
        if names and names[-1].endswith("..."):
            names[-1] = names[-1].removesuffix("...")
            names += names[-1:] * (count - len(names))
        return names[:count]

    def has_kernel(self, provider: str, types: Mapping[str, str]) -> bool:
        """Whether one kernel takes these element types, given by type name; names that it does not limit are free."""
        return any(
            all(element in kernel.get(name, (element,)) for name, element in types.items())
            for kernel in self.kernels[provider]
        )


@cache
def opset() -> int:
    """The version of ai.onnx that the table is for."""
    return int(_content()["opset"])


@cache
def builds() -> Mapping[str, str]:
    """By provider, the ONNX Runtime whose kernels are listed."""
    return dict(_content()["onnxruntime"])


@cache
def operators() -> Mapping[str, Operator]:
    """All operators, as `ai.onnx::Add`."""
    return {name: _operator(values) for name, values in _content()["operators"].items()}


def has_kernel(provider: str, operator: str, element: str) -> bool:
    """Whether a provider computes an operator whose first input is of an element type, such as float16."""
    known = operators()[operator]
    return known.has_kernel(provider, {known.inputs[0]: element})


@cache
def _content() -> dict[str, Any]:
    text = Path(__file__).with_name("kernels.json").read_text(encoding="utf-8")
    result: dict[str, Any] = json.loads(text)
    return result


def _operator(values: dict[str, Any]) -> Operator:
    kernels = {
        provider: tuple(_kernel(kernel) for kernel in values[provider]) for provider in _content()["onnxruntime"]
    }
    return Operator(values["since"], tuple(values["inputs"]), tuple(values["outputs"]), kernels, values.get("only", {}))


def _kernel(values: dict[str, str]) -> Kernel:
    return {name: frozenset(elements.split()) for name, elements in values.items()}
