"""A whole decoder, emitted as a prefill or a decode graph."""

from typing import Any

from onnxscript.nn import Module, ModuleList

from ..description import Decoder as Description
from ..description import Layer as LayerDescription
from ..heads import head_layout
from ..rope import rope_tables
from ..target import Target
from .attention import Attention, Step
from .mlp import MLP
from .norm import RMSNorm
from .parameter import constant, parameter


class Embedding(Module):
    """ids `[batch, sequence]` → `[batch, sequence, H]`; the table is `[V, H]`."""

    def __init__(self, vocab_size: int, hidden_size: int, target: Target) -> None:
        super().__init__()
        self.weight = parameter((vocab_size, hidden_size), target)

    def forward(self, op: Any, ids: Any) -> Any:
        """Emit the look-up."""
        return op.Gather(self.weight, ids)


class Head(Module):
    """hidden `[batch, H]` → float32 logits `[batch, V]`; `table` is the embedding's `[V, H]`, or its own."""

    def __init__(self, vocab_size: int, hidden_size: int, tied: Any, target: Target) -> None:
        super().__init__()
        if tied is None:
            self.weight = parameter((vocab_size, hidden_size), target)
        self.table = self.weight if tied is None else tied
        self.cast = target.dtype != "float32"

    def forward(self, op: Any, hidden: Any) -> Any:
        """Emit the product with the transposed table."""
        logits = op.Gemm(hidden, self.table, transB=1)
        return op.Cast(logits, to=1, _name="float32") if self.cast else logits


class RotaryTables(Module):
    """cos and sin `[context, r/2]`, one pair for each different rope of the decoder."""

    def __init__(self, decoder: Description, target: Target) -> None:
        super().__init__()
        ropes = dict.fromkeys(head_layout(layer.attention).rope for layer in decoder.layers)
        self.tables: dict[Any, tuple[Any, Any]] = {}
        for number, rope in enumerate(rope for rope in ropes if rope):
            cos, sin = (constant(table, target) for table in rope_tables(rope, decoder.context_length))
            setattr(self, f"cos_{number}", cos)
            setattr(self, f"sin_{number}", sin)
            self.tables[rope] = (cos, sin)

    def forward(self, op: Any) -> dict[Any, tuple[Any, Any]]:
        """Emit nothing: calling the module registers its constants."""
        return self.tables


class Layer(Module):
    """One pre-norm layer, with both residual additions fused into the norms that follow them."""

    def __init__(self, description: LayerDescription, decoder: Description, target: Target) -> None:
        super().__init__()
        hidden, epsilon = decoder.hidden_size, decoder.norm_epsilon
        self.input_layernorm = RMSNorm(hidden, epsilon, target)
        self.self_attn = Attention(description.attention, hidden, target)
        self.post_attention_layernorm = RMSNorm(hidden, epsilon, target)
        self.mlp = MLP(description.mlp, hidden, target)

    def forward(self, op: Any, branch: Any, residual: Any, step: Step, past: Any) -> tuple[Any, Any, Any]:
        """Emit the layer; returns its last branch, the residual that is still to be added to it, and the present."""
        normed, residual = self.input_layernorm(op, branch, residual)
        attended, present = self.self_attn(op, normed, step, past)
        normed, residual = self.post_attention_layernorm(op, attended, residual)
        return self.mlp(op, normed), residual, present


class Model(Module):
    """Embedding, layers and final norm: ids to `[batch, sequence, H]`."""

    def __init__(self, decoder: Description, target: Target) -> None:
        super().__init__("model")
        self.embed_tokens = Embedding(decoder.vocab_size, decoder.hidden_size, target)
        self.rotary_emb = RotaryTables(decoder, target)
        self.layers = ModuleList([Layer(layer, decoder, target) for layer in decoder.layers])
        self.norm = RMSNorm(decoder.hidden_size, decoder.norm_epsilon, target)

    def forward(self, op: Any, ids: Any, lengths: tuple[Any, Any], pasts: list[Any]) -> tuple[Any, list[Any]]:
        """Emit the body; `lengths` are seqlens_k and total_sequence_length. Returns hidden states and presents."""
        step = Step(*lengths, self.rotary_emb(op))
        branch, residual, presents = self.embed_tokens(op, ids), None, []
        for layer, past in zip(self.layers, pasts, strict=True):
            branch, residual, present = layer(op, branch, residual, step, past)
            presents.append(present)
        return self.norm(op, branch, residual)[0], presents


class CausalLM(Module):
    """The decoder with its head; logits of one position per sequence."""

    def __init__(self, decoder: Description, target: Target) -> None:
        super().__init__("")
        self.model = Model(decoder, target)
        tied = self.model.embed_tokens.weight if decoder.tied_head else None
        self.lm_head = Head(decoder.vocab_size, decoder.hidden_size, tied, target)

    def forward(
        self, op: Any, ids: Any, lengths: tuple[Any, Any], index: Any, pasts: list[Any]
    ) -> tuple[Any, list[Any]]:
        """Emit everything; `index` int64 `[batch]` picks the position in prefill, None takes the only one in decode."""
        hidden, presents = self.model(op, ids, lengths, pasts)
        if index is None:
            last = op.Squeeze(hidden, [1], _name="last_hidden")
        else:
            rows = op.Unsqueeze(index, [1], _name="logits_row")
            last = op.GatherND(hidden, rows, batch_dims=1, _name="last_hidden")
        return self.lm_head(op, last), presents
