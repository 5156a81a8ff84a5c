"""A bundle for CUDA made of one for the CPU: the same codes, scales and outlier channels, in other arithmetic.

What is calibrated is calibrated on the CPU; a GPU then runs what came out of it.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.adapters.fitting import require_no_adapter_inputs
from runtime.bundle.bundle import Bundle, new_bundle, open_bundle, write_manifest
from runtime.bundle.manifest import MANIFEST_NAME, Graphs, KVCache, Manifest, Verification
from runtime.bundle.manifest import Target as ManifestTarget
from runtime.bundle.sequence_task import require_generation
from runtime.bundle.tensor_specs import DTYPE_BITS
from runtime.errors import OptionError, UnsupportedError

from . import manifest as describe
from .kernels import require_kernels
from .narrowing import narrow
from .options import ExportOptions
from .paged import make_paged
from .weights.plan import WEIGHTS_FILE

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from models.targets.target import Target
    from quantizer.graph.graphs import Graphs as Models


def is_bundle(source: Any) -> bool:
    """Whether a source is a bundle rather than a checkpoint."""
    return isinstance(source, str | Path) and (Path(source) / MANIFEST_NAME).is_file()


def retarget(source: str | Path, output: str | Path, options: ExportOptions) -> Manifest:
    """Write the bundle that CUDA runs.

    Args:
        source: a bundle for the CPU in float32, quantized or not, int8 and 4-bit keys and values included.
        output: the folder to create.
        options: `target` cuda, and its `dtype`, `kv` and `overwrite`.

    Raises:
        OptionError: something else is chosen, which a bundle has decided already.
        UnsupportedError: the bundle cannot be retargeted, or CUDA has no kernel for a node; it says which.
        QuantizationError, IntegrityError: the bundle is damaged.
    """
    from models.targets.target import Target
    from quantizer.graph.graphs import load_graphs

    bundle = open_bundle(source)
    require_no_adapter_inputs(bundle, "another target")
    require_generation(bundle, "another target (export the checkpoint with --target cuda and --task)")
    target = Target("cuda", options.dtype or "float16")
    _require_possible(bundle, options)
    models = load_graphs(bundle)
    if options.kv == "paged":
        models.models["paged.onnx"] = load_graphs(bundle).models[bundle.manifest.graphs.prefill.file]
    for model in models.models.values():
        narrow(model.graph, target)
    if options.kv == "paged":
        make_paged(models.models["paged.onnx"])
    for model in models.models.values():
        require_kernels(model.graph, target)
    with new_bundle(output, overwrite=options.overwrite) as folder:
        _write(bundle, models, folder)
        return write_manifest(folder, _manifest(bundle.manifest, models, target))


def _require_possible(bundle: Bundle, options: ExportOptions) -> None:
    allowed = ExportOptions(
        target="cuda", dtype=options.dtype, kv=options.kv, verify=options.verify, overwrite=options.overwrite
    )
    if options.target != "cuda":
        raise OptionError(
            f"{bundle.folder} is a bundle. It can be made one for a GPU (--target cuda), or another program's folder "
            "(--format); a bundle for the CPU is exported from a checkpoint."
        )
    if options != allowed:
        raise OptionError(
            "a bundle keeps what was chosen when it was written; only --target cuda, --dtype and --kv can be changed. "
            "Leave the other options out, or export the checkpoint with them."
        )
    manifest = bundle.manifest
    if (manifest.target.provider, manifest.target.dtype) != ("cpu", "float32"):
        raise UnsupportedError(
            f"{bundle.folder} was built for {manifest.target.provider} in {manifest.target.dtype}. A bundle for CPUs "
            "in float32 can be retargeted; export the checkpoint again for anything else."
        )
    if manifest.state_bytes:
        raise UnsupportedError(
            f"{bundle.folder} has layers that keep states, whose operators differ between CPU and CUDA. "
            "Export the checkpoint with --target cuda."
        )


def _write(bundle: Bundle, models: "Models", folder: Path) -> None:
    """Weights one at a time, in the types that the graphs now give them; then the graphs and all other files."""
    from quantizer.graph.saving import save_graph
    from quantizer.storage.weights_file import WeightsWriter, read_tensor

    wanted = {name: value.dtype for model in models.models.values() for name, value in model.graph.initializers.items()}
    with WeightsWriter(folder / WEIGHTS_FILE) as writer:
        for name, tensor in models.initializers().items():
            dtype = wanted[name] or tensor.dtype
            array = read_tensor(tensor)
            writer.add(name, array if dtype == tensor.dtype else _converted(name, array, dtype), dtype)
        for file, model in models.models.items():
            save_graph(model, folder / file, writer.placed)
    graphs = set(models.models)
    for name in bundle.manifest.files:
        if name not in graphs and name != WEIGHTS_FILE and (folder / name).parent == folder:
            shutil.copyfile(bundle.path(name), folder / name)


def _converted(name: str, array: "np.ndarray[Any, Any]", dtype: "ir.DataType") -> "np.ndarray[Any, Any]":
    import numpy as np

    narrow = array.astype(dtype.numpy())
    if not np.isfinite(narrow.astype(np.float32)).all():
        raise UnsupportedError(f"{name} has values beyond the range of {dtype.name.lower()}. Choose --dtype bfloat16.")
    return narrow


def _manifest(old: Manifest, models: "Models", target: "Target") -> Manifest:
    """The old one, with the new types. What was measured was measured in other arithmetic, and is left out."""
    graphs = [describe.describe_graph(model.graph, file) for file, model in models.models.items()]
    operators = {f"{n.domain or 'ai.onnx'}::{n.op_type}" for m in models.models.values() for n in m.graph}
    target_of = ManifestTarget("cuda", target.dtype, old.target.min_onnxruntime, tuple(sorted(operators)))
    return replace(
        old, graphs=Graphs(*graphs), kv_cache=_cache(old.kv_cache, target), target=target_of,
        verification=Verification("none", None), quality=None, files={},
    )  # fmt: skip


def _cache(old: KVCache, target: "Target") -> KVCache:
    if old.dtype != "float32":  # codes stay codes
        return old
    size = old.bytes_per_token * DTYPE_BITS[target.dtype] // DTYPE_BITS[old.dtype]
    return replace(old, dtype=target.dtype, bytes_per_token=size)
