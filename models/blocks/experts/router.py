"""Which experts a token goes to, as the logits that the MoE operator takes."""

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.nn import Module

from ...decoder.description import Router as Description
from ...targets.target import Target
from ..linear import Linear
from ..norm import Norm
from ..parameter import Plan, parameter

FLOAT32 = Target()  # routing is decided in float32, whatever the graph computes in
NEVER = -1e30  # a logit whose softmax is 0


class Router(Module):
    """x `[batch, sequence, H]` float32 → routing `[tokens, E]`: for the operator, or for experts that are all computed.

    The operator takes logits, computes the softmax over all experts and takes the best k. Any other weights w reach it
    as the logits log(w) of the experts taken, and a sum that its output is to be multiplied by where the weights do
    not add up to 1. `dense` routing is the weights themselves, 0 for experts that are not taken.
    """

    def __init__(self, about: Description, hidden_size: int, dense: bool) -> None:
        super().__init__()
        self.about, self.dense = about, dense
        if about.norm is not None:
            self.norm = Norm(about.norm, (hidden_size,), FLOAT32, Plan(scale=hidden_size**-0.5))
        self.linear = Linear(hidden_size, about.experts, about.bias, FLOAT32)
        self.linear._set_name("")  # its weight is gate.weight, as in every checkpoint
        if about.correction:
            self.correction = parameter((about.experts,), FLOAT32)
        if about.expert_scale:
            self.expert_scale = parameter((about.experts,), FLOAT32)

    def forward(self, op: Any, x: Any) -> tuple[Any, Any]:
        """Emit the routing `[tokens, E]`; with it the weights' sums `[tokens, 1]`, or None for ones."""
        logits = self.linear(op, x if self.about.norm is None else self.norm(op, x))
        logits = op.Reshape(logits, op.Constant(value_ints=[-1, self.about.experts]), _name="logits")
        if self.about.plain and not self.dense:
            return logits, None
        taken, weights = self._mixed(op, logits) if self.about.jitter is not None else self._take(op, logits)
        if self.dense:
            return self._weights(op, logits, taken, weights), None
        routing = self._scatter(op, logits, taken, op.Log(weights, _name="log_weights"), NEVER)
        return routing, None if self.about.normalize else self._sum(op, weights)

    def _weights(self, op: Any, logits: Any, taken: Any, weights: Any) -> Any:
        if self.about.normalize:
            weights = op.Div(weights, self._sum(op, weights), _name="normalized")
        if self.about.expert_scale:
            weights = op.Mul(weights, op.Gather(self.expert_scale, taken, axis=0, _name="scales"), _name="scaled")
        return self._scatter(op, logits, taken, weights, 0.0)

    def _scatter(self, op: Any, like: Any, taken: Any, values: Any, elsewhere: float) -> Any:
        filled = op.Expand(_number(op, elsewhere), op.Shape(like, _name="shape"), _name="elsewhere")
        return op.ScatterElements(filled, taken, values, axis=1, _name="routing")

    def _sum(self, op: Any, weights: Any) -> Any:
        return op.ReduceSum(weights, op.Constant(value_ints=[1]), keepdims=1, _name="weight_sum")

    def _take(self, op: Any, logits: Any) -> tuple[Any, Any]:
        """The best k by corrected scores, and their scores, both `[tokens, k]`."""
        about = self.about
        if about.scores == "softmax":
            scores = op.Softmax(logits, axis=-1, _name="scores")
        else:
            scores = op.Sigmoid(logits, _name="scores")
        choice = op.Add(scores, self.correction, _name="corrected") if about.correction else scores
        if about.groups[0] > 1:
            choice = self._keep_groups(op, choice)
        _, taken = op.TopK(choice, op.Constant(value_ints=[about.top_k]), axis=-1, _outputs=2, _name="top_k")
        return taken, op.GatherElements(scores, taken, axis=1, _name="weights")

    def _keep_groups(self, op: Any, choice: Any) -> Any:
        """Choices outside the best groups become -1e30."""
        count, kept = self.about.groups
        grouped = op.Reshape(choice, op.Constant(value_ints=[0, count, -1]), _name="grouped")
        best = op.Constant(value_ints=[2 if self.about.group_score == "top2" else 1])
        highest, _ = op.TopK(grouped, best, axis=-1, _outputs=2, _name="best_of_groups")
        scores = op.ReduceSum(highest, op.Constant(value_ints=[2]), keepdims=0, _name="group_scores")
        _, groups = op.TopK(scores, op.Constant(value_ints=[kept]), axis=-1, _outputs=2, _name="top_groups")
        none = op.Expand(_number(op, 0.0), op.Shape(groups, _name="kept"), _name="no_penalty")
        never = op.Expand(_number(op, NEVER), op.Shape(scores, _name="groups"), _name="penalty")
        penalty = op.ScatterElements(never, groups, none, axis=1, _name="penalties")
        penalized = op.Add(grouped, op.Unsqueeze(penalty, [2], _name="each_penalty"), _name="penalized")
        return op.Reshape(penalized, op.Constant(value_ints=[0, self.about.experts]), _name="choice")

    def _mixed(self, op: Any, logits: Any) -> tuple[Any, Any]:
        """The sparse mixer's two experts and weights, both `[tokens, 2]`."""
        first, weight = self._mix(op, logits, logits, "first")
        never = op.Expand(_number(op, NEVER), op.Shape(first, _name="one"), _name="never_again")
        rest = op.ScatterElements(logits, first, never, axis=1, _name="rest")
        second, next_weight = self._mix(op, logits, rest, "second")
        experts = op.Concat(first, second, axis=1, _name="experts")
        return experts, op.Concat(weight, next_weight, axis=1, _name="weights")

    def _mix(self, op: Any, logits: Any, rest: Any, name: str) -> tuple[Any, Any]:
        """The best of `rest`, and its softmax among those near it: (best - z) / max(|z|, best) <= 2 * jitter."""
        assert self.about.jitter is not None
        best, index = op.TopK(rest, op.Constant(value_ints=[1]), axis=-1, _outputs=2, _name=f"{name}.best")
        size = op.Max(op.Abs(logits, _name=f"{name}.abs"), best, _name=f"{name}.size")
        distance = op.Div(op.Sub(best, logits, _name=f"{name}.gap"), size, _name=f"{name}.distance")
        far = op.Greater(distance, _number(op, 2 * self.about.jitter), _name=f"{name}.far")
        near = op.Where(far, _number(op, NEVER), rest, _name=f"{name}.near")
        weights = op.Softmax(near, axis=-1, _name=f"{name}.softmax")
        return index, op.GatherElements(weights, index, axis=1, _name=f"{name}.weight")


def _number(op: Any, value: float) -> Any:
    return op.Constant(value=ir.tensor(np.array(value, np.float32)))
