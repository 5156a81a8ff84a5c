"""One decoder layer in each of the topologies of `description.Layer`."""

from collections.abc import Callable
from typing import Any

from onnxscript.nn import Module

from ..decoder import description
from ..targets.target import Target
from .attention.attention import Attention
from .attention.latent import LatentAttention
from .experts.beside import Beside
from .experts.moe import MoE
from .mlp import MLP
from .norm import Norm, ResidualNorm
from .parameter import parameter
from .per_layer_inputs import LayerInput
from .recurrent.delta_net import DeltaNet
from .recurrent.mamba import Mamba
from .recurrent.short_conv import ShortConv
from .step import Step


def _mixer(about: description.Attention | description.Recurrent) -> tuple[str, Callable[..., Module]]:
    """What mixes positions, and the name that its weights go by."""
    if isinstance(about, description.Attention):
        return "self_attn", Attention if about.latent is None else LatentAttention
    kinds: dict[type, tuple[str, Callable[..., Module]]] = {
        description.ShortConv: ("short_conv", ShortConv),
        description.DeltaNet: ("linear_attn", DeltaNet),
        description.Mamba: ("mamba", Mamba),
    }
    return kinds[type(about)]


class Layer(Module):
    """(branch, residual) in and out: the stream is their sum, added inside the next norm where there is one."""

    def __init__(self, decoder: description.Decoder, number: int, target: Target) -> None:
        super().__init__()
        self.about = about = decoder.layers[number]
        self.number, hidden_size = number, decoder.hidden_size
        shape = (hidden_size,)
        name, kind = _mixer(about.attention)
        self._mix = kind(about.attention, hidden_size, target, about.residual_scale)
        self._mix._set_name(name)
        if isinstance(about.mlp, description.MoE):
            self.mlp: Module = MoE(about.mlp, hidden_size, target, about.residual_scale)
        else:
            self.mlp = MLP(about.mlp, hidden_size, target, about.residual_scale)
        if about.pre_attention:
            self.input_layernorm = ResidualNorm(about.pre_attention, shape, target)
        if about.post_attention:
            self.attention_output_layernorm = Norm(about.post_attention, shape, target)
        if about.pre_mlp:
            kind = Norm if about.topology == "parallel" else ResidualNorm
            self.post_attention_layernorm = kind(about.pre_mlp, shape, target)
        if about.post_mlp:
            self.mlp_output_layernorm = Norm(about.post_mlp, shape, target)
        if about.beside:
            self.beside = Beside(about.beside, hidden_size, target)
        self.per_layer_input = None
        if decoder.per_layer_inputs:
            self.per_layer_input = LayerInput(decoder.per_layer_inputs, hidden_size, target)
        if about.output_scale:
            self.layer_scalar = parameter((1,), target)

    def forward(self, op: Any, branch: Any, residual: Any, step: Step, past: Any) -> tuple[Any, Any, Any]:
        """Emit the layer; returns its last branch, the residual that is still to be added to it, and the present."""
        emit = {"sequential": self._sequential, "parallel": self._parallel, "post_norm": self._post_norm}
        branch, residual, present = emit[self.about.topology](op, branch, residual, step, past)
        if self.per_layer_input is not None:
            residual = op.Add(branch, residual, _name="before_input")
            branch = self.per_layer_input(op, residual, step.layer_inputs[self.number])
        if self.about.output_scale:
            total = branch if residual is None else op.Add(branch, residual, _name="unscaled")
            branch, residual = op.Mul(total, self.layer_scalar, _name="scaled"), None
        return branch, residual, present

    def _sequential(self, op: Any, branch: Any, residual: Any, step: Step, past: Any) -> tuple[Any, Any, Any]:
        normed, residual = self._add_norm(op, "input_layernorm", branch, residual)
        attended, present = self._mix(op, normed, step, past)
        attended = self._norm(op, "attention_output_layernorm", attended)
        normed, residual = self._add_norm(op, "post_attention_layernorm", attended, residual)
        output = self.mlp(op, normed)
        if self.about.beside:
            output = self.beside(op, residual, output)
        return self._norm(op, "mlp_output_layernorm", output), residual, present

    def _parallel(self, op: Any, branch: Any, residual: Any, step: Step, past: Any) -> tuple[Any, Any, Any]:
        normed, residual = self._add_norm(op, "input_layernorm", branch, residual)
        attended, present = self._mix(op, normed, step, past)
        other = self.post_attention_layernorm(op, residual) if self.about.pre_mlp else normed
        return op.Add(attended, self.mlp(op, other), _name="branches"), residual, present

    def _post_norm(self, op: Any, branch: Any, residual: Any, step: Step, past: Any) -> tuple[Any, Any, Any]:
        assert residual is None
        attended, present = self._mix(op, branch, step, past)
        normed, _ = self.input_layernorm(op, attended, branch)
        output, _ = self.post_attention_layernorm(op, self.mlp(op, normed), normed)
        return output, None, present

    def _add_norm(self, op: Any, name: str, branch: Any, residual: Any) -> tuple[Any, Any]:
        """norm(branch + residual) and the new residual; without the norm both are the sum."""
        norm = getattr(self, name, None)
        if norm is None:
            total = branch if residual is None else op.Add(branch, residual, _name=f"{name}.residual")
            return total, total
        normed, total = norm(op, branch, residual)
        return normed, normed if self.about.residual_from_norm else total

    def _norm(self, op: Any, name: str, x: Any) -> Any:
        norm = getattr(self, name, None)
        return x if norm is None else norm(op, x)
