"""Other quantizers of ONNX Runtime, for `quality.py`: its own MatMulNBitsQuantizer, and a folder of onnxruntime-genai.

The first quantizes our float graph: its products, the head among them, and the embedding. It knows no shared table, so
both are counted, as they would be stored. `genai FOLDER` is a model that its builder made of the same checkpoint; off
its grid, of what `offgrid_checkpoint.py` writes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from quantizer.calibration.segments import Segment, body, empty_cache_feeds, find_cut, head
from quantizer.evaluation.kl import with_log_softmax
from quantizer.graph.graphs import load_graphs
from runtime.bundle.bundle import Bundle, open_bundle
from runtime.ort.session import onnxruntime


class Rewritten:
    """A prefill graph that somebody else rewrote, in the place of `quantizer.evaluation.kl.Model`."""

    def __init__(self, bundle: Bundle, path: Path) -> None:
        graph = ir.load(path).graph
        cut = find_cut(graph)
        self._bundle, self._hidden, self._rows = bundle, str(cut.hidden.name), str(cut.head_input.name)
        self._body = Segment(body(graph, cut, 0, len(cut.borders) + 1), path.parent)
        self._head = Segment(with_log_softmax(head(graph, cut)), path.parent)

    def hidden(self, ids: np.ndarray) -> np.ndarray:
        return self._body(empty_cache_feeds(self._bundle, ids))[self._hidden]

    def log_probabilities(self, rows: np.ndarray) -> np.ndarray:
        return next(iter(self._head({self._rows: rows}).values()))


def ort_quantizer(make_config: Callable[[], Any], **options: Any) -> Callable[[Path, Path], tuple[Any, int]]:
    """A row that ONNX Runtime's quantizer makes."""

    def make(source: Path, target: Path) -> tuple[Any, int]:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        bundle = open_bundle(source)
        path = target / "prefill.onnx"
        if not path.exists():
            target.mkdir(parents=True, exist_ok=True)
            tool = MatMulNBitsQuantizer(with_plain_head(bundle), algo_config=make_config(), **options)
            tool.process()
            onnx.save(tool.model.model, path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
        return Rewritten(bundle, path), (target / "weights.bin").stat().st_size

    return make


def with_plain_head(bundle: Bundle) -> onnx.ModelProto:
    """The float prefill graph with its head as a MatMul, the only product that the tool knows."""
    file = bundle.manifest.graphs.prefill.file
    model = onnx.load(bundle.path(file))
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    tensors = load_graphs(bundle).initializers()
    table = np.ascontiguousarray(tensors[gemm.input[1]].numpy().T)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "head.weight"))
    new = onnx.helper.make_node("MatMul", [gemm.input[0], "head.weight"], gemm.output, name=gemm.name)
    model.graph.node.insert(list(model.graph.node).index(gemm), new)
    model.graph.node.remove(gemm)
    return model


class Genai:
    """A model folder of onnxruntime-genai; what it returns are logits of all positions."""

    def __init__(self, folder: Path) -> None:
        module = onnxruntime()
        self._session = module.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        self._head_size = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["head_size"]

    def hidden(self, ids: np.ndarray) -> np.ndarray:
        feeds: dict[str, np.ndarray] = {}
        for port in self._session.get_inputs():
            if port.name == "input_ids":
                feeds[port.name] = ids
            elif port.name == "attention_mask":
                feeds[port.name] = np.ones_like(ids)
            else:
                unnamed = {0: len(ids), 2: 0, 3: self._head_size}
                shape = [n if isinstance(n, int) else unnamed[i] for i, n in enumerate(port.shape)]
                feeds[port.name] = np.zeros(shape, np.float32)
        return self._session.run(["logits"], feeds)[0]

    def log_probabilities(self, rows: np.ndarray) -> np.ndarray:
        shifted = rows - rows.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def genai(folder: Path) -> tuple[Any, int]:
    """The row of a folder."""
    return Genai(folder), (folder / "model.onnx.data").stat().st_size


def _default(size: int, *, symmetric: bool = False) -> Any:
    from onnxruntime.quantization import matmul_nbits_quantizer as tool

    return tool.DefaultWeightOnlyQuantConfig(
        block_size=size, is_symmetric=symmetric, accuracy_level=4, op_types_to_quantize=("MatMul", "Gather"),
        quant_axes=(("MatMul", 0), ("Gather", 1)),
    )  # fmt: skip


def _hqq() -> Any:
    from onnxruntime.quantization import matmul_nbits_quantizer as tool

    return tool.HQQWeightOnlyQuantConfig(block_size=32, op_types_to_quantize=("MatMul",), quant_axes=(("MatMul", 0),))


def _k_quant() -> Any:
    from onnxruntime.quantization import matmul_nbits_quantizer as tool

    return tool.KQuantWeightOnlyQuantConfig(op_types_to_quantize=("MatMul",))


PEERS = {
    "ort rtn g32": ort_quantizer(lambda: _default(32)),
    "ort rtn g128": ort_quantizer(lambda: _default(128)),
    "ort hqq g32": ort_quantizer(_hqq),
    "ort k_quant g32": ort_quantizer(_k_quant, block_size=32, accuracy_level=4),
}
