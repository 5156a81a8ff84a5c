"""A folder for onnxruntime-genai: one graph with its input names, over the weights of a bundle."""

import contextlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.adapters.fitting import require_no_adapter_inputs
from runtime.bundle.bundle import Bundle, naming, new_bundle, open_bundle
from runtime.bundle.manifest import MANIFEST_NAME
from runtime.bundle.sequence_task import require_generation
from runtime.errors import OptionError

from ..options import ExportOptions
from ..weights.plan import WEIGHTS_FILE
from .check import check_genai_graph
from .config import CONFIG_FILE, GRAPH_FILE, genai_config
from .graph import make_genai_graph

if TYPE_CHECKING:
    from ..export import Progress

_FICLONE = 0x40049409  # ioctl of Linux: share the blocks of a file
_TEXT_FILES = (".json", ".jinja", ".model")


@dataclass(frozen=True)
class GenaiReport:
    """What was written.

    Args:
        folder: of onnxruntime-genai's files.
        linked: whether weights.bin is the bundle's own file, rather than a copy.
        max_difference: of the logits from the bundle's, absolute; None where that was not measured.
    """

    folder: Path
    linked: bool
    max_difference: float | None


def export_genai(
    source: Any,
    output: str | Path,
    options: ExportOptions | None = None,
    progress: "Progress | None" = None,
    *,
    link_weights: bool = False,
) -> GenaiReport:
    """Write the folder of a bundle, or of anything that `export` takes, which then is exported on the way.

    Args:
        source: a bundle, quantized or not, or a checkpoint.
        output: the folder to create.
        options: for a checkpoint, those of its export; for a bundle, `verify` and `overwrite` alone.
        progress: as in `export`.
        link_weights: give the bundle's weights.bin a second name where that can be done, in place of a copy. It takes
            no disk, and `onnx.checker` refuses both folders: weights in a file of several names.

    Raises:
        UnsupportedError: onnxruntime-genai could not run such a model.
        VerificationError: the graph does not compute what the bundle's does.
        And all that `export` and `open_bundle` raise.
    """
    options = options or ExportOptions()
    if isinstance(source, str | Path) and (Path(source) / MANIFEST_NAME).is_file():
        options.require_no_choices()
        return _write(open_bundle(source), Path(output), options, link_weights)
    from ..export import export

    if link_weights:
        raise OptionError(
            "link_weights: of a checkpoint there is no bundle whose weights could be shared. Export a bundle first, "
            "and give that as the source."
        )
    parent = Path(output).absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{Path(output).name}.bundle.", dir=parent) as scratch:
        export(source, Path(scratch) / "bundle", replace(options, overwrite=False), progress)
        report = _write(open_bundle(Path(scratch) / "bundle"), Path(output), options, False)
    return replace(report, linked=False)


def _write(bundle: Bundle, output: Path, options: ExportOptions, link_weights: bool) -> GenaiReport:
    require_generation(bundle, "a folder for onnxruntime-genai")
    require_no_adapter_inputs(bundle, "a folder for onnxruntime-genai")
    config = genai_config(bundle.manifest)
    with naming(output), new_bundle(output, overwrite=options.overwrite, marker=CONFIG_FILE) as folder:
        linked = _provide(bundle.path(WEIGHTS_FILE), folder / WEIGHTS_FILE, link_weights)
        _write_graph(bundle, folder)
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n")
        _write_tokenizer(bundle, folder)
        difference = None if options.verify == "none" else check_genai_graph(bundle, folder / GRAPH_FILE)
    return GenaiReport(output, linked, difference)


def _provide(weights: Path, target: Path, link: bool) -> bool:
    """Whether the file has a second name now; across file systems it has to be copied."""
    if link:
        with contextlib.suppress(OSError):
            os.link(weights.resolve(), target)
            return True
    _copy(weights, target)
    return False


def _copy(weights: Path, target: Path) -> None:
    """Copy, by sharing the blocks on disk where the file system can (Btrfs, XFS)."""
    with weights.open("rb") as source, target.open("wb") as copy:
        try:
            import fcntl

            fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
        except (ImportError, OSError):  # another system, or another file system
            shutil.copyfileobj(source, copy, 1 << 22)


def _write_graph(bundle: Bundle, folder: Path) -> None:
    import onnx_ir as ir

    model = ir.load(bundle.path(bundle.manifest.graphs.prefill.file))
    make_genai_graph(model)
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value.base_dir = folder
    ir.save(model, folder / GRAPH_FILE)


def _write_tokenizer(bundle: Bundle, folder: Path) -> None:
    for name in bundle.manifest.files:
        if "/" not in name and name.endswith(_TEXT_FILES):
            shutil.copyfile(bundle.path(name), folder / name)
    config = folder / "tokenizer_config.json"
    if not config.is_file():  # onnxruntime-genai insists on one
        config.write_text(json.dumps(_token_names(bundle), indent=1) + "\n")


def _token_names(bundle: Bundle) -> dict[str, Any]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(bundle.path("tokenizer.json")))
    tokens = bundle.manifest.tokens
    ids = {"bos_token": tokens.bos, "eos_token": (*tokens.eos, None)[0], "pad_token": tokens.pad}
    return {name: tokenizer.id_to_token(number) for name, number in ids.items() if number is not None}
