"""Name lookup and TCP: a socket that is tuned and fails with the stage at which it failed."""

from __future__ import annotations

import contextlib
import socket

from gpufleet.errors import Unreachable
from gpufleet.policy import Access

_KEEPALIVE_S = 15
_DEAD_AFTER_MS = 60_000


class QuickAckSocket(socket.socket):
    """Acknowledges at once. Linux drops the option again by itself, so it is set before each read.

    Without it the first request after the handshake waits 40 ms: the server holds its answer back
    until our delayed acknowledgement (Nagle's algorithm on its side).
    """

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        with contextlib.suppress(OSError):
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return super().recv(bufsize, flags)


def open_socket(access: Access) -> socket.socket:
    """A connected TCP socket; every address of the name is tried. Raises `Unreachable`."""
    target = f"{access.address} port {access.port}"
    try:
        found = socket.getaddrinfo(access.address, access.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        said = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        raise Unreachable(
            "dns",
            f"cannot look up {access.address}: {said}",
            next_step=f"getent hosts {access.address}",
            transient=isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN,
        ) from error
    last: OSError | None = None
    for family, kind, protocol, _, where in found:
        sock = QuickAckSocket(family, kind, protocol)
        try:
            sock.settimeout(access.connect_timeout_s)
            sock.connect(where)
            _tune(sock)
        except OSError as error:
            sock.close()
            last = error
        else:
            return sock
    raise _not_connected(target, access, last) from last


def _tune(sock: socket.socket) -> None:
    """No waiting for full packets, and a peer that vanished is noticed within a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)


def _not_connected(target: str, access: Access, error: OSError | None) -> Unreachable:
    check = f"{access.ssh_command} true"
    if isinstance(error, TimeoutError):
        text = f"no answer from {target} in {access.connect_timeout_s:g} s"
        return Unreachable("connect", text, next_step=f"ping -c 3 {access.address}", transient=True)
    if isinstance(error, ConnectionRefusedError):
        text = f"connection refused by {target}: no sshd listens there"
        return Unreachable("connect", text, next_step=check)
    said = (error.strerror or str(error)) if error else "no address"
    return Unreachable("connect", f"cannot connect to {target}: {said}", next_step=check)
