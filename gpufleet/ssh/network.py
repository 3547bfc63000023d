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
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from gpufleet.errors import Unreachable, UsageError
from gpufleet.policy import NodeSpec
from gpufleet.ssh.ahead import MOST, Ahead
from gpufleet.ssh.gates import AT_ONE, Gates
from gpufleet.ssh.knownhosts import known_host_files, known_hosts
from gpufleet.ssh.lanes import Hops, Lane, Lanes
from gpufleet.ssh.proxycommand import CommandSocket
from gpufleet.ssh.route import route
from gpufleet.ssh.sockets import await_first_word, look_up, open_socket
from gpufleet.ssh.target import Target

if TYPE_CHECKING:
    import fabric
    import paramiko

    from gpufleet.ssh.keys import Ask
    from gpufleet.ssh.session import Session

HANDSHAKES = max(16, 8 * (os.cpu_count() or 1))
"""Logins at once: each costs some 5 ms of CPU here, and beyond this they would time out on us."""

_WARNINGS_SHOWN = 3

Sock: TypeAlias = "socket.socket | paramiko.Channel"


class Network:
    """Opens sessions to nodes. Threads share it; `close` ends what it shares between nodes."""

    def __init__(self, share: int = 1) -> None:
        """`share`: so many processes work at the same run, and together keep to the limits."""
        self._lock = threading.Lock()
        self._routes: dict[str, Hops] = {}
        self._lanes = Lanes(self._open)
        self._gates = Gates(max(1, AT_ONE // share))
        self._handshakes = threading.Semaphore(max(1, HANDSHAKES // share))
        # By ProxyCommand each process logs in to a bastion of its own choice: one gate for them.
        self._commands = threading.Semaphore(max(1, AT_ONE // share))
        self._under_way: set[Sock] = set()
        self._cuts = 0
        self._anyway = threading.local()
        self._ahead = Ahead(self._connect)

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
            from gpufleet.ssh.keys import unlock  # noqa: PLC0415  # see `begin`

            try:
                for target in targets:
                    unlock(target, ask)
            except Unreachable as error:
                raise UsageError(f"{error.reason}; nothing was done") from error
        return [*unsafe, *odd]

    def begin(self, specs: Sequence[NodeSpec]) -> None:
        """These are connected to at once, whatever comes: nodes start their sshd's while the SSH
        libraries are loaded here (0.06 s of CPU). Where one is missing, this raises `ImportError`."""
        self._ahead.begin(specs[:MOST])
        import gpufleet.ssh.connection  # noqa: PLC0415
        import gpufleet.ssh.session  # noqa: F401, PLC0415

    def connect(self, spec: NodeSpec, *, anyway: bool = False) -> Session:
        """A shell on the node, through its jump hosts. `anyway`: even after a `cut`. Raises
        `Unreachable`."""
        self._anyway.set = anyway
        if not anyway and (begun := self._ahead.take(spec.name)):
            session = begun.result()
            try:
                self._refuse_if_cut()
            except Unreachable:
                session.close()
                raise
            return session
        cuts = self._cuts
        try:
            return self._connect(spec)
        except Unreachable:
            if not anyway or cuts == self._cuts:
                raise
            return self._connect(spec)

    def way(self, name: str) -> Hops | None:
        """The machines on the way to a node, if `prepare` has found them: plain data."""
        with self._lock:
            return self._routes.get(name)

    def learn(self, name: str, way: Hops) -> None:
        """What another process with the same files has found."""
        with self._lock:
            self._routes.setdefault(name, way)

    def cut(self) -> None:
        """The run is stopped: logins under way end now, new ones need `anyway`.

        Connections to jump hosts stay until `close`: a node's last script may still go through one.
        """
        with self._lock:
            self._cuts += 1
            under_way = list(self._under_way)
        for sock in under_way:
            _end(sock)

    def close(self) -> None:
        """End what nodes share."""
        self.cut()
        self._ahead.close()
        self._lanes.close()

    def _connect(self, spec: NodeSpec) -> Session:
        try:
            *hops, node = self._route(spec)
        except UsageError as error:
            raise Unreachable("connect", str(error)) from error
        self._refuse_if_cut()
        lane = self._lanes.place(tuple(hops)) if hops else None
        try:
            connection = self._open(node, lane)
        except BaseException:
            self._lanes.leave(lane)
            raise
        from gpufleet.ssh.session import Session  # noqa: PLC0415  # see `begin`

        return Session(node.access, connection, lambda: self._lanes.leave(lane))

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
        """A connection through `lane`, by ProxyCommand or over TCP."""
        if lane is not None:
            return self._log_in(target, lane.channel(target), lane.handshakes)
        if target.proxy_command:
            with contextlib.ExitStack() as until_first_word:
                until_first_word.enter_context(self._commands)
                self._refuse_if_cut()
                return self._log_in(target, _command(target), self._handshakes, until_first_word)
        addresses = look_up(target)
        with self._gates.at(*addresses[0][4][:2]).place():
            self._refuse_if_cut()
            return self._log_in(target, open_socket(target, addresses), self._handshakes)

    def _log_in(
        self,
        target: Target,
        sock: Sock,
        places: threading.Semaphore,
        until_first_word: contextlib.ExitStack | None = None,
    ) -> fabric.Connection:
        from gpufleet.ssh.connection import open_connection  # noqa: PLC0415  # see `begin`

        with self._lock:
            self._under_way.add(sock)
        try:
            slot = self._slot(target, sock, places, until_first_word)
            return open_connection(target, sock, slot)
        finally:
            with self._lock:
                self._under_way.discard(sock)

    @contextlib.contextmanager
    def _slot(
        self,
        target: Target,
        sock: Sock,
        places: threading.Semaphore,
        until_first_word: contextlib.ExitStack | None,
    ) -> Iterator[None]:
        """A place among the logins, from the server's first word on: a silent one keeps none."""
        self._refuse_if_cut()
        await_first_word(sock, target.access)
        if until_first_word is not None:
            until_first_word.close()
        with places:
            self._refuse_if_cut()
            yield

    def _refuse_if_cut(self) -> None:
        if self._cuts and not getattr(self._anyway, "set", False):
            raise Unreachable("connect", "the run was stopped", transient=True)


def _command(target: Target) -> CommandSocket:
    try:
        return CommandSocket.start(target.proxy_command)
    except OSError as error:
        raise Unreachable("connect", f"ProxyCommand cannot be started: {error.strerror}") from error


def _end(sock: Sock) -> None:
    """From another thread than the one that waits for it; that one then closes it."""
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        return
    from paramiko import SSHException  # noqa: PLC0415  # loaded: this is a channel of its

    with contextlib.suppress(OSError, EOFError, SSHException):
        sock.close()
