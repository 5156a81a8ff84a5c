"""The socket that the server listens at, taken before any model is loaded: a port in use is found at once."""

import errno
import ipaddress
import os
import socket
import stat
from pathlib import Path
from types import TracebackType

from ..errors import OptionError

_BACKLOG = 2048


class Listener:
    """A bound socket: TCP at a host and port, or a unix socket.

    Args:
        host: a name or address; "::" takes IPv6 and IPv4.
        port: 0 for any that is free.
        uds: path of a unix socket, in place of host and port.
        send_seconds: how long the system keeps a connection whose client reads nothing.

    Attributes:
        socket: bound, and listening once the server runs.
        address: for the log.
        open_to_all: other machines can reach it.

    Raises:
        OptionError: the address is in use, is not of this machine, or is not permitted.
    """

    def __init__(self, host: str, port: int, uds: Path | None = None, *, send_seconds: float = 60.0) -> None:
        self._uds = uds
        self.socket = _unix(uds) if uds else _tcp(host, port, send_seconds)
        name, number = ("", 0) if uds else self.socket.getsockname()[:2]
        shown = f"[{name}]" if ":" in name else name
        self.address = f"unix socket {uds}" if uds else f"http://{shown}:{number}"
        self.open_to_all = not uds and ipaddress.ip_address(name).is_unspecified
        self.loopback = bool(uds) or ipaddress.ip_address(name).is_loopback

    def __enter__(self) -> "Listener":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the address back."""
        self.socket.close()
        if self._uds:
            self._uds.unlink(missing_ok=True)


def _tcp(host: str, port: int, send_seconds: float) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise OptionError(f"--host {host}: {error.strerror or error}.") from error
    if os.name == "posix":  # elsewhere it lets two servers share a port
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6 and hasattr(socket, "IPV6_V6ONLY"):
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # taken over by each connection
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(send_seconds * 2000))
    try:
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise OptionError(_words(f"{host} port {port}", error, "Give another --port, or end what uses it.")) from error
    return made


def _unix(path: Path) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise OptionError("--uds: this system has no unix sockets here. Use --host and --port.")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        made.bind(str(path))
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise OptionError(_words(f"--uds {path}", error, "Give another path, or end the server there.")) from error
    return made


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that has ended; OSError if one listens, or if it is no socket."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another server listens there")


def _words(what: str, error: OSError, advice: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{what} is in use. {advice}"
    return f"{what}: cannot listen there ({error.strerror or error})."
