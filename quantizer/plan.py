"""What a run does to each matrix: the rearrangement that its neighbours absorb, its Hessian, how it is stored."""

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np
import onnx_ir as ir

from runtime.bundle import json_codec
from runtime.errors import QuantizationError

from .algorithms.hessian import Hessian
from .algorithms.outlier_channels import find_outlier_channels
from .allocation.budget import Measured, Tried, allocate_bytes, stored_bytes, try_base
from .allocation.candidates import candidates_of, config_for, schemes_of
from .allocation.decode_time import allocate_time
from .calibration.hessians import Hessians
from .graph.quantizable import QuantizableWeight
from .recipe import Recipe, TimeBudget
from .storage.matrix import Floats, Index
from .storage.scheme import QuantConfig
from .storage.storing import largest_of, outlier_bytes
from .storage.weights_file import Layout, read_part, read_tensor
from .transforms.discover import Structure
from .transforms.equivalent import Axis, EquivalentTransforms
from .transforms.permute import plan_permutations
from .transforms.smooth import plan_smoothing

_SMOOTHING = {4: 0.25, 8: 0.5}  # exponents by bits that were best on SmolLM2-135M off its grid
# How much a tied embedding's rounding looks at the embedding itself rather than at the head's inputs. In 4 bits,
# alone, it costs SmolLM2-135M a KL of 0.021 by GPTQ with this share and 0.182 by the search.
_EMBEDDING_SHARE = 0.1

_ANY_TIME = TimeBudget(1.0, "avx512")


class Plan:
    """The plan of one run.

    Args:
        recipe: what was asked for.
        sites: the matrices to quantize.
        transposed: names of the matrices, quantized or not, that lie in the file as `[K, N]`.
        structure: what may absorb what.
        hessians: Hessians, or None for a method that needs none.
    """

    def __init__(
        self,
        recipe: Recipe,
        sites: Sequence[QuantizableWeight],
        transposed: set[str],
        structure: Structure,
        hessians: Hessians | None,
    ) -> None:
        self.recipe = recipe
        self.sites = list(sites)
        self.changes = EquivalentTransforms()
        self.configs = {s.unit: config_for(s, recipe) for s in sites}
        self.outlier_channels: dict[str, Index] = {}  # by weight: inputs that stay in floating point
        self._hessians = hessians
        self._shared: WeakValueDictionary[Hashable, Hessian] = WeakValueDictionary()
        self._lock = Lock()
        self._transposed = transposed
        if hessians is not None and recipe.permute:
            plan_permutations(structure, self.diagonal, self.changes)
        if hessians is not None and recipe.smoothing:
            plan_smoothing(structure, self.diagonal, self._exponent, self.changes)

    @property
    def fingerprint(self) -> str:
        """Of all that measurements depend on: weights, text, and the recipe, less what it is to cost."""
        time = self.recipe.time and _ANY_TIME  # its candidates are others than those of bytes
        return self._identify(replace(self.recipe, budget=None, time=time, exclude=(), polish=0, residual_share=None))

    @property
    def identity(self) -> str:
        """Of all that decides what a matrix that is stored in a given way becomes."""
        return self._identify(self.recipe)

    def _identify(self, recipe: Recipe) -> str:
        text = self._hessians.fingerprint if self._hessians else ""
        recipe = replace(recipe, kv=None, kv_text=None)  # decides nothing about weights
        recipe = replace(recipe, text_sha256=None, tokens_sha256=None)  # `text` says what was used
        return json.dumps([text, json_codec.encode(recipe)], sort_keys=True)

    def diagonal(self, weight: str) -> Floats | None:
        """Mean squares of a matrix's inputs `[K]`, in the order planned so far and not scaled; None where unknown."""
        if self._hessians is None or weight not in self._hessians:
            return None
        squares, order = self._hessians.diagonal(weight), self.changes.inputs(weight).order
        return squares if order is None else squares[order]

    def find_outlier_channels(self, tensors: Mapping[str, ir.TensorProtocol]) -> None:
        """Look for inputs of these matrices that 8-bit activations cannot carry."""
        for site in (site for site in self.sites if site.weight in tensors):
            hessian = self.hessian(site) if site.role == "linear" else None
            if hessian is not None and len(
                found := find_outlier_channels(self.read(site, tensors[site.weight]), hessian.values)
            ):
                self.outlier_channels[site.weight] = found

    @property
    def outlier_bytes(self) -> int:
        """What the outlier channels add to weights.bin."""
        return sum(
            outlier_bytes(site.rows, site.inputs, len(self.outlier_channels.get(site.weight, ())))
            for site in self.sites
        )

    def tried(self, site: QuantizableWeight, tensor: ir.TensorProtocol) -> Tried:
        """A matrix quantized in an ordinary way, its values as the float graph has them."""
        tried = try_base(
            site,
            (partial(self.matrix, site, tensor, expert) for expert in range(site.count)),
            schemes_of(site, self.recipe),
        )
        values = tried.values if site.role == "experts" else self.changes.undo_matrix(site.weight, tried.values)
        return replace(tried, values=np.ascontiguousarray(values.swapaxes(-1, -2) if site.transposed else values))

    def candidates(self, site: QuantizableWeight) -> list[QuantConfig]:
        """How a recipe with a budget may store a matrix; no residual channels where no Hessian says which."""
        known = self._hessians is not None and site.weight in self._hessians
        return [candidate for candidate in candidates_of(site, self.recipe) if known or not candidate.residual_channels]

    def allocate(self, measured: Mapping[str, Measured], budget: int, layout: Layout) -> None:
        """Choose how each matrix is stored, within `budget` bytes of the whole file."""
        candidates = {site.unit: self.candidates(site) for site in self.sites}
        self.configs.update(allocate_bytes(self.sites, candidates, measured, budget, layout))

    def allocate_time(self, measured: Mapping[str, Measured], time: TimeBudget) -> None:
        """Choose how each matrix is stored, within what a decode step may take."""
        candidates = {site.unit: self.candidates(site) for site in self.sites}
        self.configs.update(allocate_time(self.sites, candidates, measured, time))

    def stored_bytes(self, layout: Layout) -> int:
        """What weights.bin will take by the configs chosen so far, outlier channels aside."""
        return stored_bytes(self.sites, self.configs, layout)

    def matrix(
        self, site: QuantizableWeight, tensor: ir.TensorProtocol, expert: int = 0
    ) -> tuple[Floats, Hessian | None]:
        """A matrix `[N, K]`, or one of a stack, and the Hessian of its inputs.

        Raises:
            QuantizationError: NaN or infinite weights.
        """
        return self.read(site, tensor, expert), self.hessian(site, expert)

    def hessian(self, site: QuantizableWeight, expert: int = 0) -> Hessian | None:
        """The Hessian of a matrix's inputs as they will be; None where unknown.

        Matrices that read the same inputs share it, and its factor, while one of them is under way.
        """
        if self._hessians is not None and site.role == "experts":
            own = self._hessians.experts.read(site.weight, expert)
            return None if own is None else Hessian(own)
        if self._hessians is None or site.weight not in self._hessians:
            return None
        axis, role = self.changes.inputs(site.weight), site.role
        key = (self._hessians.inputs_of(site.weight), axis.identity, role)
        with self._lock:
            found = self._shared.get(key)
            if found is None:
                found = self._shared[key] = Hessian(self._changed(site, axis))
            return found

    def _changed(self, site: QuantizableWeight, axis: Axis) -> Floats:
        assert self._hessians is not None
        hessian = axis.apply_to_hessian(self._hessians.read(site.weight))
        mean = hessian.diagonal().mean()
        if site.role == "embedding" and mean > 0:
            hessian = (
                hessian * ((1 - _EMBEDDING_SHARE) / mean) + np.eye(len(hessian), dtype=np.float32) * _EMBEDDING_SHARE
            )
        return hessian.astype(np.float32, copy=False)

    def read(self, site: QuantizableWeight, tensor: ir.TensorProtocol, expert: int = 0) -> Floats:
        """The rearranged weights of a matrix, or of one in a stack, float32 `[N, K]`.

        Raises:
            QuantizationError: NaN or infinite weights.
        """
        weight = read_part(tensor, expert) if site.role == "experts" else read_tensor(tensor)
        weight = np.ascontiguousarray(weight.T if site.transposed else weight, np.float32)
        if not math.isfinite(largest_of(weight)):
            raise QuantizationError(
                f"{site.weight}: holds NaN or infinite weights; the source checkpoint is broken. Export a sound one."
            )
        return self.changes.matrix(site.weight, weight)

    def is_transposed(self, weight: str) -> bool:
        """Whether a matrix lies in the file as `[K, N]`."""
        return weight in self._transposed

    def _exponent(self, weight: str) -> float:
        config: QuantConfig | None = self.configs.get(weight)
        return _SMOOTHING[config.scheme.bits] if config else 0.0
