"""What an operator may choose about the server, beside the engine's options. Frozen and validated."""

from dataclasses import dataclass
from typing import Literal

from ..errors import OptionError
from ..options import integer, one_of, real

_MOST_SECONDS = 7 * 86400


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How the server treats its clients.

    Args:
        api_keys: who may use it; without any, everybody.
        cors_origins: web pages of other origins that may use it, such as "https://chat.example.com".
        max_queue: requests that may wait, for all models together, besides those that run.
        max_body: bytes of a request's body.
        body_seconds: how long a client may take to send it.
        ping_seconds: silence in a stream after which a comment is sent, so that no proxy takes it for dead.
        stall_seconds: how long the engine may stand still with work before /health says so.
        default_max_tokens: most tokens of a chat answer whose request names no limit.
        request_seconds: a request that takes longer ends with an error; None is no limit.
        response_store: bytes of memory for responses of /v1/responses that may be read again and continued; 0 is none.
        tool_fallback: describe tools in the prompt of models whose template has none.
        reasoning_format: "auto" separates thoughts from the text, "none" leaves them in it.
        drain_seconds: how long requests may go on after the first SIGTERM.

    Raises:
        OptionError: a value is out of range.
    """

    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_queue: int = 64
    max_body: int = 4 << 20
    body_seconds: float = 30.0
    ping_seconds: float = 15.0
    stall_seconds: float = 60.0
    default_max_tokens: int = 1024
    request_seconds: float | None = None
    response_store: int = 64 << 20
    tool_fallback: bool = False
    reasoning_format: Literal["auto", "none"] = "auto"
    drain_seconds: float = 120.0

    def __post_init__(self) -> None:
        try:
            self._check()
        except ValueError as error:
            raise OptionError(f"{error}.") from None

    def _check(self) -> None:
        integer("max_queue", self.max_queue, 0)
        integer("max_body", self.max_body, 1)
        integer("response_store", self.response_store, 0)
        integer("default_max_tokens", self.default_max_tokens, 1)
        one_of("reasoning_format", self.reasoning_format, ("auto", "none"))
        for name in ("body_seconds", "ping_seconds", "stall_seconds"):
            real(name, getattr(self, name), 0, _MOST_SECONDS, above=True)
        real("drain_seconds", self.drain_seconds, 0, _MOST_SECONDS)
        if self.request_seconds is not None:
            real("request_seconds", self.request_seconds, 0, _MOST_SECONDS, above=True)
        if not all(self.api_keys):
            raise ValueError("an API key is empty")
