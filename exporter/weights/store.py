"""How each weight is stored: as the checkpoint's own codes, packed while it is read, or in floating point."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from quantizer.recipe import QuantConfig, Recipe
from quantizer.storage.packing import packed_bytes
from runtime.bundle.manifest import Calibration, Quantization, QuantizedTensor

from .lossless_repack import repacked_matrix, scale_kind, with_scales_as
from .read import weight_pieces

if TYPE_CHECKING:
    import onnx_ir as ir

    from quantizer.graph.quantizable import QuantizableWeight
    from quantizer.graph.rewrite import StoredMatrix
    from quantizer.storage.weights_file import WeightsWriter

    from ..options import ExportOptions
    from .plan import Weight

How = Literal["kept", "packed", "float"]
# Stored types that are no codes; live models name theirs as torch does.
PLAIN = frozenset({"F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True)
class Outcome:
    """What became of one matrix; `reason` says why it was not kept."""

    name: str
    how: How
    stored_as: str
    reason: str = ""


@dataclass
class Storage:
    """What is to be stored, and after writing, what was.

    Args:
        sites: by weight, the matrices that can have codes.
        keep: whether codes of the checkpoint are kept.
        recipe: how the others are packed, or None.
        provider: that the graphs are for.
        kinds: what a matrix of these stored types is kept as, by the one that was tried.
        requantize: whether the user wants no codes kept.
    """

    sites: "dict[str, QuantizableWeight]"
    keep: bool
    recipe: Recipe | None
    provider: str
    kinds: dict[tuple[str, ...], QuantConfig | None]
    requantize: bool = False
    stored: "dict[str, StoredMatrix]" = field(default_factory=dict)
    tensors: list[QuantizedTensor] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def nbytes(self, weight: "Weight") -> int:
        """About how many bytes of weights.bin a weight will need."""
        site = self.sites.get(weight.name)
        kept = self.kept_as(weight) if self.keep and site else None
        config = kept or (self._choice(site) if site and self.recipe else None)
        if site is None or config is None:
            return weight.nbytes
        return min(weight.nbytes, packed_bytes(site.rows, site.inputs, config, 4 if kept else 2))

    def kept_as(self, weight: "Weight") -> QuantConfig | None:
        """How the codes of a matrix would be kept, by the first one of its kind; None if they cannot be."""
        kinds = _kinds(weight)
        if kinds not in self.kinds:
            matrix = repacked_matrix(weight, self.sites[weight.name])
            self.kinds[kinds] = None if isinstance(matrix, str) else QuantConfig(matrix.scheme)
        return self.kinds[kinds]

    def quantization(self) -> Quantization | None:
        """What the manifest says of it."""
        if not self.tensors:
            return None
        recipe: dict[str, Any] = {}
        if self.keep:
            kept = dict.fromkeys(outcome.stored_as for outcome in self.outcomes if outcome.how == "kept")
            recipe |= {"source": "checkpoint", "kept": list(kept)}
        if self.recipe is not None:
            from runtime.bundle import json_codec

            recipe |= json_codec.encode(self.recipe)
        return Quantization(recipe, Calibration("none", 0), tuple(self.tensors))

    def write(self, writer: "WeightsWriter", weight: "Weight") -> None:
        """Store one weight."""
        site = self.sites.get(weight.name)
        if site is None or not (self._write_kept(writer, weight, site) or self._write_packed(writer, weight, site)):
            writer.add_pieces(weight.name, weight_pieces(weight), weight.dtype, weight.shape)

    def _write_kept(self, writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight") -> bool:
        stored_as = " + ".join(dict.fromkeys(_kinds(weight)))
        if not self.keep and PLAIN.issuperset(_kinds(weight)):
            return False
        matrix = repacked_matrix(weight, site) if self.keep else self._reason(weight)
        if isinstance(matrix, str):
            self.outcomes.append(Outcome(weight.name, "packed" if self.recipe else "float", stored_as, matrix))
            return False
        kind = scale_kind(matrix, weight.dtype.numpy())
        self._store(writer, weight, with_scales_as(matrix, kind), kind, 0.0)
        self.outcomes.append(Outcome(weight.name, "kept", stored_as))
        return True

    def _reason(self, weight: "Weight") -> str:
        """Why a quantized matrix is not kept where none is."""
        kinds = _kinds(weight)
        if kinds not in self.kinds:
            return "as --requantize wants it" if self.requantize else "embeddings have a form of their own"
        lost = " + ".join(dict.fromkeys(kinds))
        return "most others cannot be kept" if self.kinds[kinds] else f"{lost} has no exact form in MatMulNBits"

    def _write_packed(self, writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight") -> bool:
        if self.recipe is None:
            return False
        from .pack import read_packed

        config = self._choice(site)
        if packed_bytes(site.rows, site.inputs, config, 4) >= weight.nbytes:
            return False
        matrix, kind, error = read_packed(weight, site, config, self.recipe.method)
        self._store(writer, weight, matrix, kind, error)
        return True

    def _store(self, writer: "WeightsWriter", weight: "Weight", matrix: Any, kind: Any, error: float) -> None:
        from quantizer.algorithms.registry import NO_RESIDUALS
        from quantizer.storage.storing import store_codes

        self.stored[weight.name], entry = store_codes(writer, weight.name, matrix, NO_RESIDUALS, kind, error)
        self.tensors.append(entry)

    def _choice(self, site: "QuantizableWeight") -> QuantConfig:
        assert self.recipe is not None
        return self.recipe.embedding if site.role == "embedding" else self.recipe.linear


def plan_storage(
    graphs: "list[ir.Graph]", weights: "list[Weight]", vocab_size: int, options: "ExportOptions"
) -> Storage:
    """Decide how weights are stored, before any is written.

    Codes of the checkpoint are kept if that is possible for at least half of the weights of its linear layers. Of each
    kind of stored tensors, one matrix is tried.

    Args:
        graphs: prefill and decode, with initializers that hold no data yet.
        weights: all of them.
        vocab_size: which tells tables from other matrices.
        options: what the user wants.
    """
    from quantizer.graph.quantizable import find_quantizable_weights, merge_quantizable_weights

    for graph in graphs:
        _announce(graph, weights)
    sites = {
        site.weight: site
        for site in merge_quantizable_weights(find_quantizable_weights(graph, vocab_size) for graph in graphs)
    }
    storage = Storage(sites, False, _recipe(options), options.target, {})
    if options.requantize:
        storage.requantize = True
        return storage
    layers = [weight for weight in weights if weight.name in sites and sites[weight.name].role == "linear"]
    exact = sum(weight.nbytes for weight in layers if storage.kept_as(weight))
    storage.keep = exact > 0 and 2 * exact >= sum(weight.nbytes for weight in layers)
    return storage


def _kinds(weight: "Weight") -> tuple[str, ...]:
    return tuple(source.dtype for source in weight.sources)


def _announce(graph: "ir.Graph", weights: "list[Weight]") -> None:
    """Give initializers their type and shape as data that is not there yet, which is where the quantizer looks."""
    import onnx_ir as ir

    from .plan import WEIGHTS_FILE

    for weight in weights:
        value = graph.initializers.get(weight.name)
        if value is not None:
            value.const_value = ir.ExternalTensor(
                WEIGHTS_FILE, 0, weight.nbytes, weight.dtype, shape=ir.Shape(weight.shape), name=weight.name
            )


def _recipe(options: "ExportOptions") -> Recipe | None:
    """What `onnxlm quantize --preset fast`, or `--bits 8`, would do; by another method where that is wanted."""
    from quantizer.presets import PRESETS, make_recipe
    from quantizer.presets import Storage as Stored

    if options.quantize is None:
        return None
    recipe = PRESETS["fast"] if options.quantize == "int4" else make_recipe(storage=Stored(bits=8))
    return replace(recipe, method=options.method)
