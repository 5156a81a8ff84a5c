"""What serving costs, before anything is loaded: memory per user, users that fit, and the speed that memory allows.

Decoding one token reads every weight once and every key and value of its sequence once, so one request can be no
faster than the memory's bandwidth divided by those bytes. Users are counted as admission counts them: in whole blocks.
"""

from dataclasses import dataclass, replace

from ..bundle.kv_layout import STATE_COPIES, kv_bytes_per_token
from ..bundle.manifest import Manifest
from ..cache.blocks import BlockPool
from ..errors import OptionError

LONG_CONTEXT = 32_000
_GROUP = 32  # weights that share a 16-bit scale and a zero point, in the estimates of quantized weights


@dataclass(frozen=True)
class Cost:
    """One way to store a model.

    Attributes:
        name: what is different about it.
        weight_bytes: all weights.
        read_bytes: the weights that decoding one token reads; an untied embedding table is not among them.
        kv_bytes_per_token: keys and values of one token, all layers.
        state_bytes: states of one sequence, of layers that keep one instead.
    """

    name: str
    weight_bytes: int
    read_bytes: int
    kv_bytes_per_token: int
    state_bytes: int = 0

    def pool(self, memory: int) -> BlockPool:
        """The blocks that are left for keys, values and states beside the weights."""
        row_bytes = STATE_COPIES * self.state_bytes
        return BlockPool.of_bytes(max(0, memory - self.weight_bytes), self.kv_bytes_per_token, row_bytes=row_bytes)

    def users(self, memory: int, context: int) -> int:
        """Sequences of `context` tokens that fit in `memory` beside the weights."""
        pool = self.pool(memory)
        return pool.total // pool.blocks(context)

    def users_beside(self, memory: int, context: int, long_context: int = LONG_CONTEXT) -> int:
        """Sequences of `context` tokens that still fit when one of `long_context` tokens is there; 0 if it is not."""
        pool = self.pool(memory)
        return max(0, pool.total - pool.blocks(long_context)) // pool.blocks(context)

    def tokens_per_second(self, bandwidth: float, context: int) -> float:
        """The bound on one request that has `context` tokens behind it; states are read and written."""
        return bandwidth / (self.read_bytes + context * self.kv_bytes_per_token + 2 * self.state_bytes)


@dataclass(frozen=True)
class PlanLine:
    """A cost under given memory, bandwidth and context."""

    cost: Cost
    users: int
    displaced: int
    tokens_per_second: float


@dataclass(frozen=True)
class Plan:
    """The model as stored, then other ways to store it."""

    memory: int
    bandwidth: float
    context: int
    lines: tuple[PlanLine, ...]


def make_plan(current: Cost, manifest: Manifest, memory: int, bandwidth: float, context: int) -> Plan:
    """Compare the model as stored with its alternatives.

    Raises:
        OptionError: a number is not positive.
    """
    for name, value in {"memory": memory, "bandwidth": bandwidth, "context": context}.items():
        if not value > 0:
            raise OptionError(f"{name} must be more than 0, got {value}.")
    costs = [current, *alternatives(current, manifest)]
    return Plan(memory, bandwidth, context, tuple(_line(cost, memory, bandwidth, context) for cost in costs))


def alternatives(current: Cost, manifest: Manifest) -> list[Cost]:
    """The same model with other weights, other keys and values, or fewer key and value heads."""
    rows = manifest.architecture.cache_rows
    stored = manifest.kv_cache.stored_bits
    found = [_with_weights(current, manifest, bits) for bits in (8, 4)]
    found += [
        replace(current, name=f"int{bits} keys and values", kv_bytes_per_token=kv_bytes_per_token(rows, bits))
        for bits in (8, 4)
        if bits < stored
    ]
    small = _with_weights(current, manifest, 4)
    found.append(replace(small, name="int4 weights, int8 KV", kv_bytes_per_token=kv_bytes_per_token(rows, 8)))
    if all(heads % 2 == 0 for heads, _ in rows):
        halved = kv_bytes_per_token([(heads // 2, width) for heads, width in rows], stored)
        found.append(replace(current, name="half the KV heads (another model)", kv_bytes_per_token=halved))
    return [
        cost
        for cost in found
        if cost.weight_bytes < current.weight_bytes or cost.kv_bytes_per_token < current.kv_bytes_per_token
    ]


def current_cost(manifest: Manifest, weight_bytes: int, untied_table_bytes: int = 0) -> Cost:
    """The model as it is stored."""
    kv, states = manifest.kv_cache.bytes_per_token, manifest.state_bytes
    return Cost("as it is", weight_bytes, weight_bytes - untied_table_bytes, kv, states)


def _with_weights(current: Cost, manifest: Manifest, bits: int) -> Cost:
    per_weight = bits + (16 + bits) / _GROUP
    weight_bytes = int(manifest.architecture.parameters * per_weight / 8)
    share = current.read_bytes / current.weight_bytes
    return replace(current, name=f"int{bits} weights", weight_bytes=weight_bytes, read_bytes=int(weight_bytes * share))


def _line(cost: Cost, memory: int, bandwidth: float, context: int) -> PlanLine:
    users = cost.users(memory, context)
    displaced = users - cost.users_beside(memory, context) if users else 0
    return PlanLine(cost, users, displaced, cost.tokens_per_second(bandwidth, context))
