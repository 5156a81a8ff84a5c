"""The sizes of a checkpoint's float bundle, before any weight is read: what the quantizer's forecast is made of."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class FloatSizes:
    """Of the bundle that `export` would write for the CPU.

    Attributes:
        graphs: prefill and decode; their weights have types and shapes, and no data.
        vocabulary: tokens that the model knows.
        kv_bytes: of the keys and values of one token.
        weight_bytes: of weights.bin.
        parameters: of the checkpoint.
    """

    graphs: "tuple[ir.Graph, ir.Graph]"
    vocabulary: int
    kv_bytes: int
    weight_bytes: int
    parameters: int


def float_sizes(source: Path) -> FloatSizes:
    """Look at a Hugging Face folder or a GGUF file.

    Raises:
        CheckpointError, UnsupportedError: it cannot be exported.
    """
    from models.families.registry import describe
    from models.targets.target import Target

    from . import manifest
    from .checkpoint import open_checkpoint
    from .graph import build_graph
    from .options import ExportOptions
    from .weights.plan import plan_weights
    from .weights.storage_plan import plan_storage
    from .weights.tying import tie_head

    checkpoint, options = open_checkpoint(source), ExportOptions(requantize=True)
    decoder, table = describe(checkpoint.config)
    decoder, tensors = tie_head(decoder, table, checkpoint.tensors)
    target = Target("cpu", "float32", options.target_ort)
    prefill, decode = (build_graph(decoder, target, role).graph for role in ("prefill", "decode"))
    weights = plan_weights(prefill, decoder, table, tensors)
    plan_storage([prefill, decode], weights, decoder.vocab_size, options)  # gives initializers their types and shapes
    return FloatSizes(
        (prefill, decode),
        decoder.vocab_size,
        manifest.describe_cache(decoder, target).bytes_per_token,
        sum(weight.nbytes for weight in weights),
        manifest.count_parameters(weights),
    )
