"""A whole decoder, emitted as a prefill or a decode graph."""

from typing import Any

from onnxscript.nn import Module, ModuleList

from ..decoder.description import Attention
from ..decoder.description import Decoder as Description
from ..targets.target import Target
from .altup import AltUpLayer, Gather, Spread
from .embedding import Embedding
from .layer import Layer
from .linear import Linear
from .norm import Norm, ResidualNorm
from .parameter import parameter, scalar
from .per_layer_inputs import PerLayerInputs
from .step import SharedInputs, Step


class Head(Module):
    """hidden `[batch, width]` → float32 logits `[batch, V]`; `table` is the embedding's `[V, width]`, or its own."""

    def __init__(self, decoder: Description, width: int, tied: Any, target: Target) -> None:
        super().__init__()
        if tied is None:
            self.weight = parameter((decoder.vocab_size, width), target)
        self.table = self.weight if tied is None else tied
        self.bias = parameter((decoder.vocab_size,), target) if decoder.head_bias else None
        self.softcap, self.cast = decoder.logit_softcap, target.dtype != "float32"

    def forward(self, op: Any, hidden: Any) -> Any:
        """Emit the product with the transposed table, the bias and the soft cap."""
        logits = op.Gemm(hidden, self.table, transB=1)
        logits = op.Add(logits, self.bias, _name="bias_add") if self.bias is not None else logits
        logits = op.Cast(logits, to=1, _name="float32") if self.cast else logits
        if self.softcap is None:
            return logits
        cap = op.Constant(value_float=self.softcap)
        return op.Mul(op.Tanh(op.Div(logits, cap, _name="uncapped"), _name="tanh"), cap, _name="softcap")


class Model(Module):
    """Embedding, layers and final norm: ids to `[batch, sequence, H]`."""

    def __init__(self, decoder: Description, target: Target) -> None:
        super().__init__("model")
        hidden, width = decoder.hidden_size, decoder.embedding_width or decoder.hidden_size
        self.decoder, self.target = decoder, target
        self.embed_tokens = Embedding(decoder.vocab_size, width, target)
        if width != hidden:
            self.project_in = Linear(width, hidden, False, target)
        if decoder.positions:
            self.embed_positions = Embedding(decoder.positions.rows, hidden, target)
        if decoder.embedding_norm:
            self.embed_norm = Norm(decoder.embedding_norm, (hidden,), target)
        self.shared = SharedInputs(decoder, target)
        if decoder.per_layer_inputs:
            self.per_layer_inputs = PerLayerInputs(decoder, target)
        if decoder.altup:
            self.spread = Spread(decoder.altup.streams, hidden, target)
            self.gather = Gather(decoder.altup.streams, hidden, target)
        kind = AltUpLayer if decoder.altup else Layer
        self.layers = ModuleList([kind(decoder, number, target) for number in range(len(decoder.layers))])
        if decoder.final_norm:
            self.norm = ResidualNorm(decoder.final_norm, (hidden,), target)

    def forward(self, op: Any, ids: Any, lengths: tuple[Any, Any, Any], pasts: list[Any]) -> tuple[Any, list[Any]]:
        """Emit the body; `lengths` are the first three values of a Step. Returns hidden states and presents.

        Both `pasts` and presents are those of all layers; a layer without a cache has no past, and sees a present.
        """
        step = self.shared(op, ids, *lengths)
        branch, residual = self._embed(op, ids, step), None
        presents: list[Any] = []
        if self.decoder.per_layer_inputs:
            step.layer_inputs.extend(self.per_layer_inputs(op, ids, branch))
        branch = self.spread(op, branch) if self.decoder.altup else branch
        for layer, about, past in zip(self.layers, self.decoder.layers, pasts, strict=True):
            source = about.attention.keys_of if isinstance(about.attention, Attention) else None
            seen = past if source is None else presents[source]
            branch, residual, present = layer(op, branch, residual, step, seen)
            presents.append(present)
        branch = self.gather(op, branch) if self.decoder.altup else branch
        if self.decoder.final_norm:
            return self.norm(op, branch, residual)[0], presents
        return branch if residual is None else op.Add(branch, residual, _name="residual"), presents

    def _embed(self, op: Any, ids: Any, step: Step) -> Any:
        decoder = self.decoder
        x = self.embed_tokens(op, ids)
        if decoder.embedding_scale != 1:
            x = op.Mul(x, scalar(op, decoder.embedding_scale, self.target), _name="embed_scale")
        if decoder.embedding_width is not None:
            x = self.project_in(op, x)
        if decoder.positions:
            rows = op.Add(step.positions, op.Constant(value_int=decoder.positions.offset), _name="position_rows")
            x = op.Add(x, self.embed_positions(op, rows), _name="embed")
        return self.embed_norm(op, x) if decoder.embedding_norm else x


class CausalLM(Module):
    """The decoder with its head; logits of one position per sequence."""

    def __init__(self, decoder: Description, target: Target) -> None:
        super().__init__("")
        self.decoder, self.target = decoder, target
        width = decoder.embedding_width or decoder.hidden_size
        self.model = Model(decoder, target)
        if width != decoder.hidden_size:
            self.project_out = Linear(decoder.hidden_size, width, False, target)
        tied = self.model.embed_tokens.weight if decoder.tied_head else None
        self.lm_head = Head(decoder, width, tied, target)

    def forward(
        self, op: Any, ids: Any, lengths: tuple[Any, Any, Any], index: Any, pasts: list[Any]
    ) -> tuple[Any, list[Any]]:
        """Emit everything; `index` int64 `[selected, 2]` picks (row, position) in prefill; None: decode's only one."""
        hidden, presents = self.model(op, ids, lengths, pasts)
        if index is None:
            last = op.Squeeze(hidden, [1], _name="last_hidden")
        else:
            last = op.GatherND(hidden, index, _name="last_hidden")
        if self.decoder.embedding_width is not None:
            last = self.project_out(op, last)
        if self.decoder.logit_scale != 1:
            last = op.Mul(last, scalar(op, self.decoder.logit_scale, self.target), _name="logit_scale")
        return self.lm_head(op, last), presents
