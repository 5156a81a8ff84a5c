"""What a new sequence continues behind, and what is kept of it for later ones.

Keys and values can be cut anywhere. States of layers cannot: they are kept where a prompt is about to end, and where it
leaves another one that began alike, which is where the next one may leave both.
"""

import functools
import logging
from collections.abc import Callable

from ..cache.prefix_cache import Block, PrefixCache
from ..errors import ExecutionError
from ..ort.runner_protocol import MIN_CHUNK, ModelRunner, states_of
from .failures import execution_errors
from .request import Sequence
from .scheduler import Scheduler

_log = logging.getLogger("onnxlm.engine")


class PrefixReuse:
    """Between slots and the cache of prefixes.

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
        """Continue behind the longest beginning that the prefix cache knows, if that is more than the slot has.

        Where that fails, the whole prompt is computed.
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
        path = self._usable(sequence, prefixes.match(sequence.tokens, len(sequence.tokens) - MIN_CHUNK))
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
        """A chunk of its prompt is in its slot: keep what is to be kept."""
        self._try_to_keep(lambda: self._reached(sequence))

    def ended(self, sequence: Sequence, reason: str) -> None:
        """It ends while it runs: keep what was generated, too. Of a cancelled answer nobody may have seen the last."""
        self._try_to_keep(lambda: self._ended(sequence, reason))

    def _try_to_keep(self, keep: Callable[[], None]) -> None:
        """What cannot be kept is not reused: no request fails because of it."""
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
        """Those blocks behind which the slot can go on; where states are missing, it will keep them for the next."""
        if not self._states or not path:
            return path
        last = max((state_slot for state_slot, block in enumerate(path, 1) if block.states), default=0)
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
        self._prefixes.store(sequence.tokens, length, functools.partial(self._executor.read, sequence.slot))
        if self._states:
            read = functools.partial(self._states.read_state, sequence.slot, length)
            self._prefixes.store_states(sequence.tokens, length, read)
