"""How each weight is stored: as the checkpoint's own codes, packed while it is read, or in floating point."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from quantizer.recipe import Recipe
from quantizer.storage.packing import packed_bytes
from quantizer.storage.scheme import QuantConfig, Scheme
from runtime.bundle.manifest import Calibration, Quantization, QuantizedTensor

from .lossless_repack import common_scheme, repacked_matrix, scale_kind, stack_scheme, with_scales_as
from .read import weight_pieces

if TYPE_CHECKING:
    from quantizer.graph.quantizable import QuantizableWeight
    from quantizer.storage.stored import StoredMatrix
    from quantizer.storage.weights_file import WeightsWriter

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
        sites: by weight, the matrices and stacks of experts that can have codes.
        keep: whether codes of the checkpoint are kept.
        recipe: how the others are packed, or None.
        provider: that the graphs are for.
        kinds: what a matrix of these stored types is kept as, or why it is not, by the one that was tried.
        units: by module of experts, its stacks, all of which are stored alike.
        requantize: whether the user wants no codes kept.
        warnings: for the user.
    """

    sites: "dict[str, QuantizableWeight]"
    keep: bool
    recipe: Recipe | None
    provider: str
    kinds: "dict[tuple[object, ...], Scheme | str]" = field(default_factory=dict)
    units: "dict[str, list[Weight]]" = field(default_factory=dict)
    requantize: bool = False
    warnings: list[str] = field(default_factory=list)
    stored: "dict[str, StoredMatrix]" = field(default_factory=dict)
    tensors: list[QuantizedTensor] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def nbytes(self, weight: "Weight") -> int:
        """About how many bytes of weights.bin a weight will need."""
        site, config = self.sites.get(weight.name), self.config(weight)
        if site is None or config is None:
            return weight.nbytes
        scale_bytes = 4 if self.is_repacked(weight) else 2
        return min(weight.nbytes, site.count * packed_bytes(site.rows, site.inputs, config, scale_bytes))

    def config(self, weight: "Weight") -> QuantConfig | None:
        """How a weight will be stored; None in floating point."""
        site = self.sites.get(weight.name)
        kept = self.repacked_scheme(weight) if self.keep and site else ""
        if not isinstance(kept, str):
            return QuantConfig(kept)
        from quantizer.allocation.candidates import config_for

        return config_for(site, self.recipe) if site and self.recipe else None

    def is_repacked(self, weight: "Weight") -> bool:
        """Whether a weight takes the checkpoint's own codes."""
        return self.keep and weight.name in self.sites and not isinstance(self.repacked_scheme(weight), str)

    def repacked_scheme(self, weight: "Weight") -> Scheme | str:
        """How the codes of a matrix would be kept, by the first one of its kind, or why they cannot be."""
        site = self.sites[weight.name]
        together = self.units.get(site.operator) or [weight]
        kinds = (site.role, site.divisor, *(_kinds(one) for one in together))
        if kinds not in self.kinds:
            self.kinds[kinds] = self._try(together, site)
        return self.kinds[kinds]

    def _try(self, together: "list[Weight]", site: "QuantizableWeight") -> Scheme | str:
        if site.role != "experts":
            matrix = repacked_matrix(together[0], site)
            return matrix if isinstance(matrix, str) else matrix.scheme
        return common_scheme([stack_scheme(weight, self.sites[weight.name]) for weight in together])

    def quantization(self) -> Quantization | None:
        """The manifest's entry."""
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
        if site is None or not (self._write_repacked(writer, weight, site) or self._write_packed(writer, weight, site)):
            writer.add_pieces(weight.name, weight_pieces(weight), weight.dtype, weight.shape)

    def _write_repacked(self, writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight") -> bool:
        if all(map(_is_plain, _kinds(weight))):
            return False
        stored_as = " + ".join(dict.fromkeys(_kinds(weight)))
        reason = self._keep(writer, weight, site) if self.keep else self._reason(weight)
        how: How = "kept" if not reason else "packed" if self.recipe else "float"
        self.outcomes.append(Outcome(weight.name, how, stored_as, reason))
        return how == "kept"

    def _keep(self, writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight") -> str:
        """Store the checkpoint's codes, or say why not."""
        if site.role == "experts":
            scheme = self.repacked_scheme(weight)
            if isinstance(scheme, str):
                return scheme
            from .repacked_stack import store_repacked_stack

            self._add(weight, store_repacked_stack(writer, weight, site, scheme))
            return ""
        matrix = repacked_matrix(weight, site)
        if isinstance(matrix, str):
            return matrix
        kind = scale_kind(matrix, weight.dtype.numpy())
        self._store(writer, weight, with_scales_as(matrix, kind), kind, 0.0)
        return ""

    def _reason(self, weight: "Weight") -> str:
        """Why a quantized matrix is not kept where none is."""
        if self.requantize:
            return "as --requantize wants it"
        kept = self.repacked_scheme(weight)
        return kept if isinstance(kept, str) else "most others cannot be kept"

    def _write_packed(self, writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight") -> bool:
        if self.recipe is None:
            return False
        from quantizer.allocation.candidates import config_for

        from .pack import store_packed

        config = config_for(site, self.recipe)
        if site.role != "experts" and packed_bytes(site.rows, site.inputs, config, 4) >= weight.nbytes:
            return False
        self._add(weight, store_packed(writer, weight, site, config, self.recipe.method))
        return True

    def _store(self, writer: "WeightsWriter", weight: "Weight", matrix: Any, kind: Any, error: float) -> None:
        from quantizer.storage.matrix import NO_RESIDUALS
        from quantizer.storage.storing import store_codes

        self._add(weight, store_codes(writer, weight.name, matrix, NO_RESIDUALS, kind, error))

    def _add(self, weight: "Weight", made: "tuple[StoredMatrix, QuantizedTensor]") -> None:
        self.stored[weight.name] = made[0]
        self.tensors.append(made[1])


def _kinds(weight: "Weight") -> tuple[str, ...]:
    return tuple(source.dtype for source in weight.sources)


def _is_plain(kind: str) -> bool:
    """No codes, and none below what an adapter changed."""
    return PLAIN.issuperset(kind.removesuffix(" + LoRA").split(" + "))
