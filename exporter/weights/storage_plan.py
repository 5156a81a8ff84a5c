"""How each weight will be stored, decided before any is written."""

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from quantizer.recipe import Recipe

from .store import Storage

if TYPE_CHECKING:
    import onnx_ir as ir

    from quantizer.graph.quantizable import QuantizableWeight

    from ..options import ExportOptions
    from .plan import Weight


def plan_storage(
    graphs: "list[ir.Graph]", weights: "list[Weight]", vocab_size: int, options: "ExportOptions"
) -> Storage:
    """Decide what gets codes, and whose.

    Codes of the checkpoint are kept if that is possible for at least half of the weights of its layers. Of each kind of
    stored tensors, one matrix is tried.

    Args:
        graphs: prefill and decode, with initializers that hold no data yet.
        weights: all of them.
        vocab_size: which tells embeddings from other matrices.
        options: what the user wants.
    """
    for graph in graphs:
        _announce(graph, weights)
    sites, stacks = _matrices(graphs, vocab_size), _stacks(graphs)
    storage = Storage(sites | stacks, False, _recipe(options), options.target, requantize=options.requantize)
    if stacks and options.target != "cpu":
        storage.sites = sites
        if storage.recipe is not None:
            storage.warnings.append(
                f"experts stay in floating point: their quantized operator was not tried on {options.target}."
            )
    _group(storage, weights)
    if options.requantize:
        return storage
    layers = [
        weight for weight in weights if weight.name in storage.sites and storage.sites[weight.name].role != "embedding"
    ]
    exact = sum(weight.nbytes for weight in layers if not isinstance(storage.repacked_scheme(weight), str))
    storage.keep = exact > 0 and 2 * exact >= sum(weight.nbytes for weight in layers)
    return storage


def _matrices(graphs: "list[ir.Graph]", vocab_size: int) -> "dict[str, QuantizableWeight]":
    from quantizer.graph.quantizable import find_quantizable_weights, merge_quantizable_weights

    found = merge_quantizable_weights(find_quantizable_weights(graph, vocab_size) for graph in graphs)
    return {site.weight: site for site in found}


def _stacks(graphs: "list[ir.Graph]") -> "dict[str, QuantizableWeight]":
    from quantizer.graph.experts import find_experts

    return {site.weight: site for graph in graphs for experts in find_experts(graph) for site in experts.sites}


def _group(storage: Storage, weights: "list[Weight]") -> None:
    """Experts' stacks by their module."""
    units: dict[str, list[Weight]] = defaultdict(list)
    for weight in weights:
        site = storage.sites.get(weight.name)
        if site is not None and site.role == "experts":
            units[site.operator].append(weight)
    storage.units.update(units)


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
