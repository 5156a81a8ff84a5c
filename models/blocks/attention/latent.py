"""Multi-head latent attention in its absorbed form: one key/value head, which is the latent itself.

What would make keys from the latent multiplies the queries instead, and what would make values from it multiplies the
attention's output; so the cache holds a latent and a rotated key per token, however many heads there are.
"""

from typing import Any

from onnxscript.nn import Module

from ...decoder.description import Attention as Description
from ...targets.target import Target
from ..linear import Linear
from ..norm import Norm
from ..parameter import Plan, parameter
from ..step import Step
from .grouped_query import attend


class LatentAttention(Module):
    """x `[batch, sequence, H]` → the same shape; past and present `[batch, 1, capacity, rope + rank]`."""

    def __init__(self, about: Description, hidden_size: int, target: Target, output_scale: float = 1.0) -> None:
        super().__init__()
        assert about.latent is not None
        self.about, self.latent = about, about.latent
        heads, latent = about.num_heads, about.latent
        self.rotary = about.head_dim - latent.rank
        self.query = LatentQuery(about, hidden_size, target)
        self.query._set_name("")  # its layers are self_attn.q_proj and so on
        self.kv_a_proj = Linear(hidden_size, latent.rank + self.rotary, latent.bias, target)
        self.kv_a_layernorm = Norm(latent.norm, (latent.rank,), target)
        self.k_up = parameter((heads, latent.nope, latent.rank), target, Plan(stacked=True))
        self.v_up = parameter((heads, latent.rank, latent.value), target, Plan(stacked=True, transposed=True))
        self.o_proj = Linear(heads * latent.value, hidden_size, latent.bias, target, scale=output_scale)

    def forward(self, op: Any, x: Any, step: Step, past: tuple[Any, Any]) -> tuple[Any, tuple[Any, Any]]:
        """Emit projections, attention over latents, and output projection; returns the output and the present."""
        key = self._key(op, x)
        query = step.grown(op, self._query(op, x), self.about.query_growth)
        attended, present = attend(op, self.about, step, (query, key, key), past)
        return self.o_proj(op, self._value(op, attended)), present

    def _query(self, op: Any, x: Any) -> Any:
        """Per head the rotating part, then the other part as the latent sees it."""
        heads, latent = self.about.num_heads, self.latent
        query = op.Reshape(self.query(op, x), op.Constant(value_ints=[0, 0, heads, -1]), _name="q_heads")
        sizes = op.Constant(value_ints=[latent.nope, self.rotary])
        nope, rotating = op.Split(query, sizes, axis=-1, _outputs=2, _name="q_split")
        absorbed = self._per_head(op, nope, self.k_up, "q_absorbed")
        whole = op.Concat(rotating, absorbed, axis=-1, _name="q_whole")
        return op.Reshape(whole, op.Constant(value_ints=[0, 0, heads * self.about.head_dim]), _name="q_flat")

    def _key(self, op: Any, x: Any) -> Any:
        sizes = op.Constant(value_ints=[self.latent.rank, self.rotary])
        latent, rotating = op.Split(self.kv_a_proj(op, x), sizes, axis=-1, _outputs=2, _name="kv_split")
        return op.Concat(rotating, self.kv_a_layernorm(op, latent), axis=-1, _name="key")

    def _value(self, op: Any, attended: Any) -> Any:
        """Drop what attended to the rotating part, and make values of the latents."""
        heads = self.about.num_heads
        by_head = op.Reshape(attended, op.Constant(value_ints=[0, 0, heads, self.about.head_dim]), _name="heads")
        sizes = op.Constant(value_ints=[self.rotary, self.latent.rank])
        _, latents = op.Split(by_head, sizes, axis=-1, _outputs=2, _name="split")
        values = self._per_head(op, latents, self.v_up, "values")
        return op.Reshape(values, op.Constant(value_ints=[0, 0, heads * self.latent.value]), _name="flat")

    def _per_head(self, op: Any, x: Any, weight: Any, name: str) -> Any:
        """`[batch, sequence, N, in]` times `[N, in, out]`, head by head."""
        product = op.MatMul(op.Transpose(x, perm=[0, 2, 1, 3], _name=f"{name}.in"), weight, _name=f"{name}.product")
        return op.Transpose(product, perm=[0, 2, 1, 3], _name=name)


class LatentQuery(Module):
    """x `[batch, sequence, H]` → queries `[batch, sequence, N * (nope + rope)]`, through a bottleneck or not."""

    def __init__(self, about: Description, hidden_size: int, target: Target) -> None:
        super().__init__()
        assert about.latent is not None
        latent = about.latent
        width = about.num_heads * (latent.nope + about.head_dim - latent.rank)
        self.bottleneck = latent.query_rank is not None
        if latent.query_rank is None:
            self.q_proj = Linear(hidden_size, width, False, target)
        else:
            self.q_a_proj = Linear(hidden_size, latent.query_rank, latent.bias, target)
            self.q_a_layernorm = Norm(latent.norm, (latent.query_rank,), target)
            self.q_b_proj = Linear(latent.query_rank, width, False, target)

    def forward(self, op: Any, x: Any) -> Any:
        """Emit the projection, or both with the norm between them."""
        if not self.bottleneck:
            return self.q_proj(op, x)
        return self.q_b_proj(op, self.q_a_layernorm(op, self.q_a_proj(op, x)))
