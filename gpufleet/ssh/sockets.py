"""Name lookup and TCP: a socket that is tuned and fails with the stage at which it failed."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LookupTimeout
from typing import TYPE_CHECKING, Any

from gpufleet.errors import Unreachable
from gpufleet.policy import Access
from gpufleet.ssh.target import Target

if TYPE_CHECKING:
    import paramiko

Addresses = list[tuple[Any, Any, int, str, Any]]
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

_KEEPALIVE_S = 15
_DEAD_AFTER_MS = 60_000
_READ_AHEAD = 1 << 15


class QuickAckSocket(socket.socket):
    """Acknowledges at once, and reads ahead: paramiko asks for each packet in two parts.

    Linux drops TCP_QUICKACK again by itself, so it is set before each read. Without it the first
    request after the handshake waits 40 ms: the server holds its answer back until our delayed
    acknowledgement (Nagle's algorithm on its side).
    """

    _ahead = b""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        if not self._ahead:
            with contextlib.suppress(OSError):
                self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            self._ahead = super().recv(max(bufsize, _READ_AHEAD), flags)
        data, self._ahead = self._ahead[:bufsize], self._ahead[bufsize:]
        return data


def open_socket(target: Target, addresses: Addresses) -> socket.socket:
    """A connected TCP socket; the name's addresses are tried one by one, for twice
    `connect_timeout` in all. Raises `Unreachable`."""
    access = target.access
    last: OSError | None = None
    deadline = time.monotonic() + 2 * access.connect_timeout_s
    for family, kind, protocol, _, where in addresses:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        try:
            sock = QuickAckSocket(family, kind, protocol)
        except OSError as error:  # too many open files, or no IPv6 here
            last = error
            continue
        try:
            sock.settimeout(min(left_s, access.connect_timeout_s))
            if target.bind_address:
                sock.bind((target.bind_address, 0))
            sock.connect(where)
            _tune(sock)
        except OSError as error:
            sock.close()
            last = error
        else:
            return sock
    raise _not_connected(access, last) from last


def await_first_word(sock: socket.socket | paramiko.Channel, access: Access) -> None:
    """Until the server speaks (or hangs up). Raises `Unreachable` after `connect_timeout`."""
    if not _spoke(sock, access.connect_timeout_s):
        raise Unreachable(
            "handshake",
            f"no answer during the SSH handshake in {access.connect_timeout_s:g} s: connected, but "
            "sshd says nothing",
            next_step=f"{access.ssh_command} true",
            transient=True,
        )


def _spoke(sock: socket.socket | paramiko.Channel, limit_s: float) -> bool:
    if not isinstance(sock, socket.socket):  # a channel, whose fileno() would cost a pipe
        spoke = threading.Event()
        sock.in_buffer.set_event(spoke)
        return spoke.wait(limit_s)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))


def look_up(target: Target) -> Addresses:
    """Looked up within `connect_timeout`: the resolver's own limits add up to minutes."""
    access = target.access
    family = _FAMILIES.get(target.family, socket.AF_UNSPEC)
    kind = socket.SOCK_STREAM
    with contextlib.suppress(socket.gaierror):  # a number needs no resolver, and no thread
        numeric = socket.AI_NUMERICHOST
        return socket.getaddrinfo(access.address, access.port, family, kind, flags=numeric)
    answer: Future[Addresses] = Future()

    def ask() -> None:
        try:
            answer.set_result(socket.getaddrinfo(access.address, access.port, family, kind))
        except (OSError, UnicodeError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True, name="lookup").start()
    try:
        return answer.result(access.connect_timeout_s)
    except LookupTimeout as error:
        said = f"the resolver gave no answer in {access.connect_timeout_s:g} s"
        raise _not_found(access, said, transient=True) from error
    except UnicodeError as error:
        raise _not_found(access, "not a host name") from error
    except socket.gaierror as error:
        again = error.errno == socket.EAI_AGAIN
        raise _not_found(access, error.strerror or str(error), transient=again) from error
    except OSError as error:
        raise _not_found(access, error.strerror or str(error)) from error


def _not_found(access: Access, said: str, *, transient: bool = False) -> Unreachable:
    return Unreachable(
        "dns",
        f"cannot look up {access.address}: {said}",
        next_step=f"getent hosts {access.address}",
        transient=transient,
    )


def _tune(sock: socket.socket) -> None:
    """No waiting for full packets, and a peer that vanished is noticed within a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)


def _not_connected(access: Access, error: OSError | None) -> Unreachable:
    target = f"{access.address} port {access.port}"
    check = f"{access.ssh_command} true"
    if isinstance(error, TimeoutError):
        text = f"no answer from {target} in {access.connect_timeout_s:g} s"
        return Unreachable("connect", text, next_step=f"ping -c 3 {access.address}", transient=True)
    if isinstance(error, ConnectionRefusedError):
        text = f"connection refused by {target}: no sshd listens there"
        return Unreachable("connect", text, next_step=check)
    if error and error.errno in {errno.EMFILE, errno.ENFILE}:
        text = f"cannot connect to {target}: this machine has too many open files"
        return Unreachable("connect", text, next_step="ulimit -n 4096, or a smaller --parallel")
    said = (error.strerror or str(error)) if error else "no address"
    reset = isinstance(error, ConnectionResetError)
    return Unreachable(
        "connect", f"cannot connect to {target}: {said}", next_step=check, transient=reset
    )
