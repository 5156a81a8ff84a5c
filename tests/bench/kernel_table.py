"""Write models/targets/kernels.json anew: which operators ONNX Runtime has kernels for, by provider and element types.

Take the CPU's kernels from the installed ONNX Runtime, and CUDA's from a list that was made where the GPU wheel is
installed (its list is complete without a GPU):

    python tests/bench/kernel_table.py dump CUDAExecutionProvider > cuda.jsonl
    python tests/bench/kernel_table.py write models/targets/kernels.json cuda.jsonl
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

OPSET = 23  # of the graphs
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
ONNX = """
    Abs Add And ArgMax Cast Clip Concat ConstantOfShape Cos CumSum Div Equal Erf Exp Expand Floor Gather GatherElements
    GatherND Gemm Greater GreaterOrEqual Identity LayerNormalization Less LessOrEqual Log MatMul Max Min Mod Mul Neg
    Not OneHot Pad Pow RMSNormalization Range Reciprocal ReduceMax ReduceMean ReduceSum Relu Reshape RotaryEmbedding
    ScatterElements ScatterND Shape Sigmoid SimplifiedLayerNormalization Sin Slice Softmax Softplus Split Sqrt Squeeze
    Sub Sum Tanh Tile TopK Transpose Unsqueeze Where
""".split()  # noqa: SIM905  # sixty quoted names would hide the list
MICROSOFT = """
    BiasGelu CausalConvWithState FastGelu FusedMatMul GatedDeltaNet GatherBlockQuantized Gelu GroupQueryAttention
    LinearAttention MatMulNBits MoE PagedAttention QMoE QuickGelu RotaryEmbedding SkipLayerNormalization
    SkipSimplifiedLayerNormalization
""".split()  # noqa: SIM905
TYPES = {"bool", "uint8", "int8", "uint4", "int4", "int32", "int64", "float", "float16", "bfloat16", "float8e4m3fn"}
OPERATORS = [("ai.onnx", name) for name in ONNX] + [("com.microsoft", name) for name in MICROSOFT]


def registered(provider: str) -> list[dict[str, Any]]:
    """All kernels of the installed ONNX Runtime, as lines of a list."""
    return [
        {
            "domain": kernel.domain or "ai.onnx",
            "op": kernel.op_name,
            "since": kernel.version_range[0],
            "until": kernel.version_range[1] if kernel.version_range[1] < 2**31 - 1 else None,
            "types": {name: sorted(map(_plain, types)) for name, types in kernel.type_constraints.items()},
        }
        for kernel in state.get_all_opkernel_def()
        if kernel.provider == provider
    ]


def table(kernels: dict[str, tuple[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """The file's content, from (version, kernels) of each provider."""
    schemas = _schemas()
    return {
        "opset": OPSET,
        "onnxruntime": {provider: version for provider, (version, _) in kernels.items()},
        "operators": {
            f"{domain}::{name}": _signature(schemas[domain, name])
            | {
                provider: _merged(k for k in rows if (k["domain"], k["op"]) == (domain, name) and _in_force(k, schemas))
                for provider, (_, rows) in kernels.items()
            }
            for domain, name in OPERATORS
        },
    }


def text(content: dict[str, Any]) -> str:
    """One line a signature and one a kernel."""
    lines = ["{", f' "opset": {content["opset"]},', f' "onnxruntime": {json.dumps(content["onnxruntime"])},']
    lines.append(' "operators": {')
    for name, operator in content["operators"].items():
        about = {key: value for key, value in operator.items() if key not in PROVIDERS}
        lines.append(f"  {json.dumps(name)}: {{{json.dumps(about)[1:-1]},")
        for provider in PROVIDERS:
            rows = ",\n    ".join(json.dumps(kernel) for kernel in operator[provider])
            lines.append(f'   "{provider}": [{rows}]' + (",", "},")[provider == "cuda"])
    lines[-1] = lines[-1][:-1]
    return "\n".join([*lines, " }", "}", ""])


def _schemas() -> dict[tuple[str, str], Any]:
    """Of each operator the schema in force at OPSET."""
    found: dict[tuple[str, str], Any] = {}
    for schema in state.get_all_operator_schema():
        key = (schema.domain or "ai.onnx", schema.name)
        newer = key not in found or schema.since_version > found[key].since_version
        if newer and (schema.since_version <= OPSET or key[0] != "ai.onnx"):
            found[key] = schema
    return found


def _signature(schema: Any) -> dict[str, Any]:
    """Type names of inputs and outputs; `only` are names that stand for one type."""
    constraints = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    only = {name: _plain(types[0]) for name, types in constraints.items() if len(types) == 1}

    def ports(formal: Iterable[Any]) -> list[str]:
        return [_plain(port.typeStr) + ("..." if "Variadic" in str(port.option) else "") for port in formal]

    signature = {"since": schema.since_version, "inputs": ports(schema.inputs), "outputs": ports(schema.outputs)}
    return signature | ({"only": only} if only else {})


def _in_force(kernel: dict[str, Any], schemas: dict[tuple[str, str], Any]) -> bool:
    """ONNX Runtime's rule: a kernel without an end is for the schema it begins with."""
    since = schemas[kernel["domain"], kernel["op"]].since_version
    begins = kernel["since"] == since
    return begins or (kernel["until"] is not None and kernel["since"] < since <= kernel["until"])


def _merged(kernels: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Kernels that differ in one name's types only, as one."""
    result = [{name: TYPES.intersection(types) for name, types in kernel["types"].items()} for kernel in kernels]
    result = [kernel for kernel in result if all(kernel.values())]
    for name in sorted({name for kernel in result for name in kernel}):
        groups: dict[Any, set[str]] = {}
        for kernel in result:
            rest = frozenset((key, frozenset(value)) for key, value in kernel.items() if key != name)
            groups.setdefault((rest, name in kernel), set()).update(kernel.get(name, ()))
        result = [dict(rest) | ({name: types} if has else {}) for (rest, has), types in groups.items()]
    return sorted(({name: " ".join(sorted(kernel[name])) for name in sorted(kernel)} for kernel in result), key=str)


def _plain(type_name: str) -> str:
    return type_name.removeprefix("tensor(").removesuffix(")")


def main(command: str, *arguments: str) -> None:
    if command == "dump":
        head = {"provider": arguments[0], "onnxruntime": onnxruntime.__version__}
        print("\n".join(json.dumps(row) for row in [head, *registered(arguments[0])]))
        return
    output, cuda = map(Path, arguments)
    head, *rows = map(json.loads, cuda.read_text(encoding="utf-8").splitlines())
    cpu = (onnxruntime.__version__, registered(PROVIDERS["cpu"]))
    output.write_text(text(table({"cpu": cpu, "cuda": (head["onnxruntime"], rows)})), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
