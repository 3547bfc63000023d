"""The connections of one run: to nodes one each, to jump hosts few and shared.

Limits handshakes, not connections: a login costs both sides CPU, and an sshd drops what comes on top
of its MaxStartups (10:30:100 by default), while an open connection costs next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import fabric
import paramiko

from gpufleet.errors import Unreachable, UsageError
from gpufleet.policy import NodeSpec
from gpufleet.ssh.connection import open_connection
from gpufleet.ssh.hostkeys import known_host_files
from gpufleet.ssh.keys import Ask, unlock
from gpufleet.ssh.knownhosts import known_hosts
from gpufleet.ssh.proxycommand import CommandSocket
from gpufleet.ssh.route import route
from gpufleet.ssh.session import Session
from gpufleet.ssh.sockets import await_first_word, open_socket
from gpufleet.ssh.target import Target

HANDSHAKES = max(16, 8 * (os.cpu_count() or 1))
"""Logins at once: each costs some 5 ms of CPU here, and beyond this they would time out on us."""

THROUGH_ONE = 8
"""Logins at once through one jump connection or by ProxyCommand, whose processes each log in to
their own bastion: below MaxStartups' 10, from which on sshd drops at random."""

PER_CONNECTION = 50
"""Nodes on one connection to a jump host: its crypto is one thread's here and one process's there."""

_WARNINGS_SHOWN = 3

Hops = tuple[Target, ...]


@dataclass(eq=False)
class Lane:
    """One connection to a jump host, and how many nodes go through it."""

    connection: fabric.Connection
    before: Lane | None
    handshakes: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(THROUGH_ONE)
    )
    users: int = 0

    @property
    def alive(self) -> bool:
        transport = self.connection.client.get_transport()
        return transport is not None and transport.is_active()


class Network:
    """Opens sessions to nodes. Threads share it; `close` ends what it shares between nodes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[Hops, list[Lane]] = {}
        self._opening: dict[Hops, Future[Lane]] = {}
        self._refused: dict[Hops, Unreachable] = {}
        self._routes: dict[str, Hops] = {}
        self._handshakes = threading.Semaphore(HANDSHAKES)
        self._commands = threading.Semaphore(THROUGH_ONE)

    def prepare(self, specs: Sequence[NodeSpec], ask: Ask | None = None) -> list[str]:
        """Before the first connection: read the configuration, ask for passphrases (`ask`, on a
        terminal only), and return what the user should know.

        Raises `UsageError` when an OpenSSH configuration file can't be used, or a passphrase is wrong.
        """
        targets: dict[Target, None] = {}
        with ThreadPoolExecutor(max(4, os.cpu_count() or 1)) as pool:
            for found in pool.map(self._try_route, specs):
                targets |= dict.fromkeys(found)
        notes = dict.fromkeys(
            f"{target.name}: host_keys is off: whoever answers at this address gets a root login"
            for target in targets
            if target.access.host_keys == "off"
        )
        unsafe = list(notes)
        if len(unsafe) > 1:
            unsafe = [f"{unsafe[0]} (and {len(unsafe) - 1} more nodes)"]
        files = dict.fromkeys(known_host_files(target) for target in targets)
        odd = list(dict.fromkeys(text for each in files for text in known_hosts(each).warnings))
        if len(odd) > _WARNINGS_SHOWN:
            odd = [*odd[:_WARNINGS_SHOWN], f"{len(odd) - _WARNINGS_SHOWN} more lines like these"]
        if ask is not None:
            try:
                for target in targets:
                    unlock(target, ask)
            except Unreachable as error:
                raise UsageError(f"{error.reason}; nothing was done") from error
        return [*unsafe, *odd]

    def connect(self, spec: NodeSpec) -> Session:
        """A shell on the node, through its jump hosts. Raises `Unreachable`."""
        try:
            targets = self._route(spec)
        except UsageError as error:
            raise Unreachable("connect", str(error)) from error
        *hops, node = targets
        lane = self._lane(tuple(hops)) if hops else None
        try:
            connection = self._open(node, lane)
        except BaseException:
            self._leave(lane)
            raise
        return Session(node.access, connection, lambda: self._leave(lane))

    def cut(self) -> None:
        """End all shared connections now; nodes behind them lose theirs. New ones may be opened."""
        with self._lock:
            lanes = [lane for found in self._lanes.values() for lane in found]
            self._lanes.clear()
        for lane in reversed(lanes):
            _close(lane.connection)

    close = cut

    def _try_route(self, spec: NodeSpec) -> Hops:
        try:
            return self._route(spec)
        except Unreachable:  # told when the node is connected to
            return ()

    def _route(self, spec: NodeSpec) -> Hops:
        with self._lock:
            known = self._routes.get(spec.name)
        if known is None:
            known = route(spec)
            with self._lock:
                self._routes[spec.name] = known
        return known

    def _open(self, target: Target, lane: Lane | None) -> fabric.Connection:
        if lane is not None:
            with lane.handshakes:
                channel = _channel(lane.connection, target)
                return open_connection(target, channel, contextlib.nullcontext())
        if target.proxy_command:
            with self._commands:
                return open_connection(target, _command(target), contextlib.nullcontext())
        sock = open_socket(target)
        return open_connection(target, sock, self._slot(target, sock))

    @contextlib.contextmanager
    def _slot(self, target: Target, sock: socket.socket) -> Iterator[None]:
        """A place among the logins, from the server's first word on: a silent one keeps none."""
        await_first_word(sock, target.access)
        with self._handshakes:
            yield

    def _lane(self, hops: Hops) -> Lane:
        """A place on a connection to the last of `hops`, opened once for all who wait for it."""
        while True:
            with self._lock:
                if error := self._refused.get(hops):
                    raise _again(error)
                lanes = [lane for lane in self._lanes.get(hops, ()) if lane.alive]
                self._lanes[hops] = lanes
                free = [lane for lane in lanes if lane.users < PER_CONNECTION]
                if free:
                    free[0].users += 1
                    return free[0]
                opening = self._opening.get(hops)
                mine = opening is None
                if opening is None:
                    opening = self._opening[hops] = Future()
            if mine:
                self._open_lane(hops, opening)
            failed = opening.exception()
            if isinstance(failed, Unreachable):
                raise _again(failed)
            if failed is not None:
                raise failed

    def _open_lane(self, hops: Hops, opening: Future[Lane]) -> None:
        *before, target = hops
        under: Lane | None = None
        try:
            under = self._lane(tuple(before)) if before else None
            lane = Lane(self._open(target, under), under)
        except BaseException as error:
            self._leave(under)
            if isinstance(error, Unreachable) and not error.reason.startswith("jump host "):
                error = Unreachable(
                    error.stage,
                    f"jump host {target.name}: {error.reason}",
                    next_step=error.next_step,
                    transient=error.transient,
                )
            with self._lock:
                del self._opening[hops]
                if isinstance(error, Unreachable) and not error.transient:
                    self._refused[hops] = error  # asked once, not once per node
            opening.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            with self._lock:
                del self._opening[hops]
                self._lanes.setdefault(hops, []).append(lane)
            opening.set_result(lane)

    def _leave(self, lane: Lane | None) -> None:
        if lane is not None:
            with self._lock:
                lane.users -= 1


def _again(error: Unreachable) -> Unreachable:
    """The same for another node: an exception that two threads raise would mix their tracebacks."""
    return Unreachable(
        error.stage, error.reason, next_step=error.next_step, transient=error.transient
    )


def _command(target: Target) -> CommandSocket:
    try:
        return CommandSocket.start(target.proxy_command)
    except OSError as error:
        raise Unreachable("connect", f"ProxyCommand cannot be started: {error.strerror}") from error


def _channel(via: fabric.Connection, target: Target) -> paramiko.Channel:
    access = target.access
    transport = via.client.get_transport()
    if transport is None:
        raise Unreachable("connect", f"jump host {via.host}: the connection ended", transient=True)
    try:
        channel: paramiko.Channel = transport.open_channel(
            "direct-tcpip",
            (access.address, access.port),
            ("", 0),
            timeout=access.connect_timeout_s,
        )
    except (OSError, EOFError, paramiko.SSHException) as error:
        refused = isinstance(error, paramiko.ChannelException)
        raise Unreachable(
            "connect",
            f"jump host {via.host} cannot reach {access.address} port {access.port}: {error}",
            next_step=f"ssh -J {via.user}@{via.host}:{via.port} {access.user}@{access.address}",
            transient=not refused,
        ) from error
    return channel


def _close(connection: fabric.Connection) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        connection.client.close()
