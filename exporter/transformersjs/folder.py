"""A folder that `@huggingface/transformers` loads unmodified, in Node and in a browser.

config.json generation_config.json tokenizer.json tokenizer_config.json …
onnx/model_q4.onnx  onnx/model_q4.onnx_data  onnx/model_q4.onnx_data_1 …
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.adapters.fitting import require_no_adapter_inputs
from runtime.bundle.bundle import Bundle, new_bundle, open_bundle
from runtime.bundle.sequence_task import require_generation
from runtime.errors import UnsupportedError

from ..genai.check import check_genai_graph
from ..genai.graph import make_genai_graph
from ..verify.choice import Method
from .config import generation_config, graph_name, model_config

if TYPE_CHECKING:
    import onnx_ir as ir

CONFIG_FILE = "config.json"
_TEXT_FILES = (".json", ".jinja", ".model")
_ALIGNMENT = 64
MAX_DATA_BYTES = 2_000_000_000  # of one file: browsers hold no larger buffer


@dataclass(frozen=True)
class TransformersJsReport:
    """What was written.

    Args:
        folder: of transformers.js's files.
        graph: the graph's name inside it.
        data_files: how many files of weights.
        max_difference: of the logits from the bundle's, absolute; None where that was not measured.
    """

    folder: Path
    graph: str
    data_files: int
    max_difference: float | None


def export_transformersjs(
    source: str | Path,
    output: str | Path,
    *,
    verify: Method = "auto",
    overwrite: bool = False,
    max_data_bytes: int = MAX_DATA_BYTES,
) -> TransformersJsReport:
    """Write the folder of a bundle.

    Args:
        source: a bundle for the CPU, quantized or not.
        output: the folder to create.
        verify: "none" skips the comparison of logits with the bundle's.
        overwrite: replace such a folder.
        max_data_bytes: most bytes of one file of weights.

    Raises:
        UnsupportedError: transformers.js could not run such a model.
        VerificationError: the graph does not compute what the bundle's does.
    """
    bundle = open_bundle(source)
    require_generation(bundle, "a folder for transformers.js")
    require_no_adapter_inputs(bundle, "a folder for transformers.js")
    if bundle.manifest.target.provider != "cpu":
        raise UnsupportedError(f"{source}: is for {bundle.manifest.target.provider}; give a bundle for the CPU.")
    name = graph_name(bundle.manifest)
    with new_bundle(output, overwrite=overwrite, marker=CONFIG_FILE) as folder:
        (folder / "onnx").mkdir()
        count = _write_graph(bundle, folder / "onnx" / name, max_data_bytes)
        _write_texts(bundle, folder, count)
        difference = None if verify == "none" else check_genai_graph(bundle, folder / "onnx" / name)
    return TransformersJsReport(Path(output), f"onnx/{name}", count, difference)


def _write_graph(bundle: Bundle, path: Path, most: int) -> int:
    """The graph, and its weights in files of at most `most` bytes; how many files."""
    import onnx_ir as ir

    model = ir.load(bundle.path(bundle.manifest.graphs.prefill.file))
    make_genai_graph(model)
    for value in (*model.graph.inputs, *model.graph.outputs):  # an empty cache is made by the names of sizes
        if value.shape is not None:
            value.shape = ir.Shape("batch_size" if str(size) == "batch" else size for size in value.shape)
    stored = [value for value in model.graph.initializers.values() if isinstance(value.const_value, ir.ExternalTensor)]
    writer = _DataFiles(path, most)
    for value in sorted(stored, key=lambda value: value.const_value.offset or 0):  # type: ignore[union-attr]
        value.const_value = writer.copy(value.const_value)
    ir.save(model, path)
    return writer.count


class _DataFiles:
    """Weights copied one tensor at a time into NAME_data, NAME_data_1 and so on."""

    def __init__(self, graph: Path, most: int) -> None:
        self._graph = graph
        self._most = most
        self._size = 0
        self.count = 1

    def copy(self, tensor: Any) -> "ir.ExternalTensor":
        """The same tensor, in a file of ours."""
        import onnx_ir as ir

        content = tensor.tobytes()
        start = -(-self._size // _ALIGNMENT) * _ALIGNMENT
        if self._size and start + len(content) > self._most:
            self.count, self._size, start = self.count + 1, 0, 0
        path = self._graph.with_name(self._name)
        with path.open("ab") as file:
            file.write(b"\0" * (start - self._size) + content)
        self._size = start + len(content)
        return ir.ExternalTensor(
            self._name, start, len(content), tensor.dtype, shape=tensor.shape, name=tensor.name, base_dir=path.parent
        )

    @property
    def _name(self) -> str:
        return f"{self._graph.name}_data" + (f"_{self.count - 1}" if self.count > 1 else "")


def _write_texts(bundle: Bundle, folder: Path, data_files: int) -> None:
    for name in bundle.manifest.files:
        if "/" not in name and name.endswith(_TEXT_FILES):
            shutil.copyfile(bundle.path(name), folder / name)
    _write_json(folder / CONFIG_FILE, model_config(bundle.manifest, data_files))
    own = _read_json(folder / "generation_config.json")
    _write_json(folder / "generation_config.json", generation_config(bundle.manifest, own))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizer"} | _read_json(folder / "tokenizer_config.json")
    if (folder / "chat_template.jinja").is_file():
        tokenizer["chat_template"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", tokenizer)


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
