"""Prefix reuse: a new sequence continues after cached tokens, and its own prefix is cached for later ones.

A prefix of keys and values can end anywhere. Recurrent state cannot be rewound, so it is kept at checkpoints: near the
end of a prompt, and where two prompts with the same beginning part, because a third is likely to part there too.
"""

import functools
import logging
from collections.abc import Callable

from ..cache.prefix_cache import Block, PrefixCache
from ..errors import ExecutionError
from ..ort.runner_protocol import MIN_CHUNK, ModelRunner, states_of
from .failures import execution_errors
from .scheduling.scheduler import Scheduler
from .scheduling.sequence import Sequence

_log = logging.getLogger("onnxlm.engine")


class PrefixReuse:
    """Copies prefixes between slots and the prefix cache.

    Args:
        executor: has the slots.
        scheduler: is told what was found.
        prefixes: keys and values of earlier prompts, or None.
    """

    def __init__(self, executor: ModelRunner, scheduler: Scheduler, prefixes: PrefixCache | None) -> None:
        self._executor = executor
        self._states = states_of(executor)
        self._scheduler = scheduler
        self._prefixes = prefixes

    def restore(self, sequence: Sequence) -> None:
        """Load the longest cached prefix into the slot, if it is longer than what the slot holds.

        If that fails, the whole prompt is computed.
        """
        if self._prefixes is None or sequence.scored:
            return
        try:
            with execution_errors("Restoring a cached prefix"):
                self._restore(sequence, self._prefixes)
        except ExecutionError as error:
            _log.warning("%s The whole prompt is computed.", error)
            self._scheduler.found(sequence, 0)

    def _restore(self, sequence: Sequence, prefixes: PrefixCache) -> None:
        path = self._usable(
            sequence, prefixes.match(sequence.tokens, len(sequence.tokens) - MIN_CHUNK, sequence.adapter)
        )
        size, known = prefixes.block_tokens, sequence.num_computed
        if len(path) * size <= known:
            return
        for start, block in zip(range(0, len(path) * size, size), path, strict=True):
            if start + size > known:
                self._executor.write(sequence.slot, start, block.data)
        if self._states:
            self._states.write_state(sequence.slot, len(path) * size, path[-1].states)
        self._scheduler.found(sequence, len(path) * size)

    def reached(self, sequence: Sequence) -> None:
        """Cache what later prompts may reuse, after a prompt chunk was computed."""
        self._try_to_keep(lambda: self._reached(sequence))

    def ended(self, sequence: Sequence, reason: str) -> None:
        """Cache the generated tokens of an answer that ends; a cancelled answer keeps no recurrent state."""
        self._try_to_keep(lambda: self._ended(sequence, reason))

    def _try_to_keep(self, keep: Callable[[], None]) -> None:
        """Try to cache a prefix; a failure is logged and fails no request."""
        try:
            with execution_errors("Keeping a prefix"):
                keep()
        except ExecutionError as error:
            _log.warning("%s It is not reused.", error)

    def _reached(self, sequence: Sequence) -> None:
        if self._states is None:
            if sequence.num_computed == len(sequence.tokens):
                self._store(sequence, self._scheduler.prefixes.reusable(sequence))
        elif sequence.num_computed in sequence.checkpoint_positions and self._scheduler.prefixes.intact(sequence):
            if sequence.num_computed == sequence.checkpoint_positions[-1]:
                self._keep(sequence)
            self._store(sequence, sequence.num_computed)

    def _ended(self, sequence: Sequence, reason: str) -> None:
        if self._states is None:
            self._store(sequence, self._scheduler.prefixes.reusable(sequence))
        elif reason != "cancelled":
            self._keep(sequence)

    def _usable(self, sequence: Sequence, path: list[Block]) -> list[Block]:
        """The blocks after which the slot can continue; where state is missing, a checkpoint is planned for it."""
        if not self._states or not path:
            return path
        last = max((count for count, block in enumerate(path, 1) if block.states), default=0)
        assert self._prefixes is not None
        branch = len(path) * self._prefixes.block_tokens
        if last < len(path) and branch not in sequence.checkpoint_positions:
            sequence.checkpoint_positions = sorted([branch, *sequence.checkpoint_positions])
        return path[:last]

    def _keep(self, sequence: Sequence) -> None:
        assert self._states is not None
        if self._states.keep_state(sequence.slot, sequence.num_computed):
            sequence.kept = sequence.num_computed

    def _store(self, sequence: Sequence, length: int) -> None:
        if self._prefixes is None:
            return
        self._prefixes.store(
            sequence.tokens, length, functools.partial(self._executor.read, sequence.slot), sequence.adapter
        )
        if self._states:
            read = functools.partial(self._states.read_state, sequence.slot, length)
            self._prefixes.store_states(sequence.tokens, length, read, sequence.adapter)
