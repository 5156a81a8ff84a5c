"""A chat template behind limits on time and memory: it runs in a process that can be killed.

A template comes with a model from a stranger, and one operation of Jinja can take hours or all memory. The process has
Jinja's sandbox as transformers sets it up, so every value is transformers' value; the system enforces the limits.
"""

from collections.abc import Mapping
from typing import Any

from ..errors import ChatTemplateError
from . import template_process as process
from . import template_worker as worker

_MAX_SOURCE = 1 << 20
_OPENING = 5.0  # seconds to compile


class SandboxedTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source.

    Attributes:
        variables: the names that it reads and does not set.

    Raises:
        ChatTemplateError: the source is too long, not a template, or takes too long to compile.
    """

    def __init__(self, source: str) -> None:
        if len(source) > _MAX_SOURCE:
            raise ChatTemplateError(f"The chat template has {len(source)} characters; at most {_MAX_SOURCE} are read.")
        self._source = source
        names = _text(process.ask(source, None, _OPENING), "is broken")
        self.variables = frozenset(names.split("\0")) if names else frozenset()

    def render(self, variables: Mapping[str, Any], seconds: float) -> str:
        """The text for these variables, which must be plain data.

        Raises:
            ChatTemplateError: the template raised an error, or exceeded a limit.
        """
        return _text(process.ask(self._source, dict(variables), seconds), "failed")


def _text(reply: process.Reply, what: str) -> str:
    if reply.status == worker.TOO_LARGE:
        raise ChatTemplateError(
            f"The chat template needs more than is allowed: {process.MEMORY >> 20} MiB of memory, "
            f"{worker.MAX_TEXT >> 20} Mi characters. Shorten the conversation, or distrust this model's template."
        )
    if reply.status == worker.FAILED:
        kind, _, words = reply.text.partition("\0")
        raise ChatTemplateError(f"The model's chat template {what}: {words or kind}")
    return reply.text
