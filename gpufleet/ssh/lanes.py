"""Connections to jump hosts: few, shared by the nodes behind them, opened once for all who wait."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import field
from typing import TYPE_CHECKING

from gpufleet.errors import Unreachable
from gpufleet.records import dataclass
from gpufleet.ssh.target import Target

if TYPE_CHECKING:
    import fabric
    import paramiko

THROUGH_ONE = 8
"""Logins at once through one jump connection: its crypto is one thread's here."""

PER_CONNECTION = 50
"""Nodes on one connection to a jump host: its crypto is one process's there."""

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

    def channel(self, target: Target) -> paramiko.Channel:
        """To the next machine, as the jump host reaches it. Raises `Unreachable`."""
        import paramiko  # noqa: PLC0415  # loaded long since where a connection is

        from gpufleet.ssh.jumpchannel import JumpChannel  # noqa: PLC0415

        access, via = target.access, self.connection
        try:
            # AttributeError: no transport any more, closed under our hands.
            channel: paramiko.Channel = via.client.get_transport().open_channel(
                "direct-tcpip",
                (access.address, access.port),
                ("", 0),
                timeout=access.connect_timeout_s,
            )
        except (AttributeError, OSError, EOFError, paramiko.SSHException) as error:
            refused = isinstance(error, paramiko.ChannelException)
            what = f"cannot reach {access.address} port {access.port}: {error}"
            if not refused and not self.alive:
                what = "the connection ended"
            elif not refused:
                what = (
                    f"no answer from {access.address} port {access.port} in "
                    f"{access.connect_timeout_s:g} s"
                )
            raise Unreachable(
                "connect",
                f"jump host {via.host}: {what}",
                next_step=f"ssh -J {via.user}@{via.host}:{via.port} {access.user}@{access.address}",
                transient=not refused,
            ) from error
        return JumpChannel.of(channel)


class Lanes:
    """All lanes of a run by the hops that lead to them. Threads share it."""

    def __init__(self, open_: Callable[[Target, Lane | None], fabric.Connection]) -> None:
        self._open = open_
        self._lock = threading.Lock()
        self._lanes: dict[Hops, list[Lane]] = {}
        self._opening: dict[Hops, Future[Lane]] = {}
        self._refused: dict[Hops, Unreachable] = {}
        self._worked: set[Hops] = set()
        self._closed = False

    def place(self, hops: Hops) -> Lane:
        """A place on a connection to the last of `hops`; `leave` gives it back."""
        while True:
            with self._lock:
                if error := self._refused.get(hops):
                    raise _again(error)
                found = self._lanes.get(hops, [])
                alive = [lane for lane in found if lane.alive]
                dead = [lane for lane in found if lane not in alive]
                self._lanes[hops] = alive
                free = [lane for lane in alive if lane.users < PER_CONNECTION]
                if free:
                    free[0].users += 1
                opening = self._opening.get(hops)
                mine = opening is None and not free
                if mine:
                    opening = self._opening[hops] = Future()
            for lane in dead:
                self._end(lane)
            if free:
                return free[0]
            assert opening is not None
            if mine:
                self._open_lane(hops, opening)
            failed = opening.exception()
            if isinstance(failed, Unreachable):
                raise _again(failed)
            if failed is not None:
                raise failed
            if mine:
                return opening.result()

    def leave(self, lane: Lane | None) -> None:
        if lane is not None:
            with self._lock:
                lane.users -= 1

    def close(self) -> None:
        """End all of them, the far ends of chains first; a further one is ended as it opens."""
        with self._lock:
            self._closed = True
            ending = sorted(self._lanes.items(), key=lambda item: -len(item[0]))
            self._lanes.clear()
        for _, lanes in ending:
            for lane in lanes:
                self._end(lane)

    def _end(self, lane: Lane) -> None:
        import paramiko  # noqa: PLC0415  # as above

        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            lane.connection.client.close()
        self.leave(lane.before)

    def _open_lane(self, hops: Hops, opening: Future[Lane]) -> None:
        """The caller's own place on it is taken at once: no other thread may be faster for ever."""
        *before, target = hops
        under: Lane | None = None
        try:
            under = self.place(tuple(before)) if before else None
            lane = Lane(self._open(target, under), under, users=1)
        except BaseException as error:
            self.leave(under)
            told = error
            with self._lock:
                if isinstance(error, Unreachable):
                    told = self._named(hops, error)
                    if not told.transient:
                        self._refused[hops] = told  # asked once, not once per node
                del self._opening[hops]
            opening.set_exception(told)
            if not isinstance(error, Exception):
                raise
        else:
            with self._lock:
                closed = self._closed
                del self._opening[hops]
                if not closed:
                    self._worked.add(hops)
                    self._lanes.setdefault(hops, []).append(lane)
            if closed:
                self._end(lane)
            opening.set_result(lane)

    def _named(self, hops: Hops, error: Unreachable) -> Unreachable:
        """The jump host's failure as a node's. One that let us in before is only away: restarted."""
        named = error.reason.startswith("jump host ")
        reason = error.reason if named else f"jump host {hops[-1].name}: {error.reason}"
        away = hops in self._worked and error.stage in {"dns", "connect"}
        return Unreachable(
            error.stage, reason, next_step=error.next_step, transient=error.transient or away
        )


def _again(error: Unreachable) -> Unreachable:
    """The same for another node: an exception that two threads raise would mix their tracebacks."""
    return Unreachable(
        error.stage, error.reason, next_step=error.next_step, transient=error.transient
    )
