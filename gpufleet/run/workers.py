"""Worker processes of this machine as an executor, for runs that one interpreter's lock would bound.

`concurrent.futures.ProcessPoolExecutor` ends all its processes when one of them dies, and gives each
one call at a time; here a process works on many nodes in threads, and its death costs its own nodes.
Started by `exec`, not by `multiprocessing`, which runs the caller's main module again in each and looks
for modules in the current folder first: a root tool is started in folders that others write to.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import field
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from gpufleet.errors import NodeError
from gpufleet.records import dataclass
from gpufleet.run.worker import STOPPING, Message, Setup

log = logging.getLogger("gpufleet")

P = ParamSpec("P")
T = TypeVar("T")

_END_S = 2.0
"""So long a worker may take to close its connections to jump hosts, before it is killed."""

_START = "import sys; sys.path[:] = sys.argv[2:]; from gpufleet.run.worker import main; main()"
"""The same modules as here: the current folder isn't looked into unless it is here as well."""


@dataclass
class _Call:
    future: Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    again: bool = False
    """It was taken over from a worker that died."""


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    outbox: queue.SimpleQueue[Setup | Message | None] = field(default_factory=queue.SimpleQueue)
    calls: dict[int, _Call] = field(default_factory=dict)
    alive: bool = True


class Workers(Executor):
    """`count` processes. `tell` hears their events, `note` of their deaths; `may_repeat` says of a
    call's arguments whether another process may take it over from one that died."""

    def __init__(
        self,
        count: int,
        tell: Callable[[str, str, str], None],
        note: Callable[[str], None] = lambda text: None,
        may_repeat: Callable[..., bool] = lambda *arguments: False,
    ) -> None:
        self._tell = tell
        self._note = note
        self._may_repeat = may_repeat
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._begun = False
        self._ended = False
        self._workers = [_started() for _ in range(count)]

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(worker.process.pid for worker in self._workers)

    def begin(self, setup: Setup) -> None:
        """They have started by themselves meanwhile; from here on they work."""
        self._begun = True
        for worker in self._workers:
            worker.outbox.put(setup)
            for work in (self._write, self._read):
                threading.Thread(target=work, args=(worker,), daemon=True).start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """To the process with the fewest calls. Positional arguments only."""
        assert not kwargs
        call = _Call(Future(), fn, args)
        call.future.set_running_or_notify_cancel()  # who gives it up can't take it back
        self._send(call)
        return call.future

    def stop(self, number: int) -> None:
        """The run was interrupted."""
        self._to_all("stop", number)

    def hurry(self) -> None:
        self._to_all("hurry")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Each closes what it has open; `wait` for that."""
        del cancel_futures
        self._ended = True
        self._to_all("end")
        for worker in self._workers:
            worker.outbox.put(None)
        for worker in self._workers:
            if wait and self._begun:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(_END_S)
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()

    def _to_all(self, *message: Any) -> None:  # noqa: ANN401  # a Message's parts
        for worker in self._workers:
            worker.outbox.put(message)

    def _send(self, call: _Call) -> None:
        with self._lock:
            alive = [worker for worker in self._workers if worker.alive]
            if alive:
                worker = min(alive, key=lambda worker: len(worker.calls))
                number = next(self._numbers)
                worker.calls[number] = call
                worker.outbox.put(("call", number, call.function, call.arguments))
                return
        call.future.set_exception(NodeError("no worker process is left: nothing was done"))

    def _write(self, worker: _Worker) -> None:
        """A thread per worker: one that stands still mustn't hold up the others."""
        try:
            while (message := worker.outbox.get()) is not None:
                worker.connection.send(message)
        except (OSError, ValueError):  # gone: `_read` sees it as well
            return
        except Exception:
            log.exception("internal error")
            worker.process.kill()

    def _read(self, worker: _Worker) -> None:
        try:
            while True:
                verb, *rest = worker.connection.recv()
                if verb == "event":
                    self._tell(*rest)
                elif verb == "log":
                    record = logging.makeLogRecord(rest[0])
                    logging.getLogger(record.name).handle(record)
                else:
                    self._take(worker, verb, *rest)
        except (EOFError, OSError):
            pass
        except Exception:  # nobody listens to it from here on
            log.exception("internal error")
            worker.process.kill()
        self._bury(worker)

    def _take(self, worker: _Worker, verb: str, number: int, result: Any) -> None:  # noqa: ANN401
        with self._lock:
            call = worker.calls.pop(number)
        if verb == "done":
            call.future.set_result(result)
        else:
            call.future.set_exception(NodeError(result))

    def _bury(self, worker: _Worker) -> None:
        """Its nodes go on elsewhere if nothing was done on them; else what is known of them is told."""
        with self._lock:
            worker.alive = False
            calls, worker.calls = list(worker.calls.values()), {}
        if self._ended:
            return
        status = worker.process.wait()
        why = f"signal {-status}" if status < 0 else f"exit status {status}"
        if status < 0:
            with contextlib.suppress(ValueError):
                why = signal.Signals(-status).name
        nodes = "1 node" if len(calls) == 1 else f"{len(calls)} nodes"
        self._note(f"worker process {worker.process.pid} died ({why}) while it worked on {nodes}")
        for call in calls:
            others = any(other.alive for other in self._workers)
            if others and not call.again and self._may_repeat(*call.arguments):
                call.again = True
                self._send(call)
            else:
                call.future.set_exception(
                    NodeError(f"its worker process died ({why}): state not verified")
                )


def _above_streams(end: socket.socket) -> socket.socket:
    """Where this process has no standard streams it got one's number, and the child's own take that."""
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _started() -> _Worker:
    ours, theirs = (_above_streams(end) for end in socket.socketpair())
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs.fileno()), *sys.path],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what is to be seen comes over the socket
            stderr=subprocess.DEVNULL,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
    return _Worker(process, Connection(ours.detach()))
