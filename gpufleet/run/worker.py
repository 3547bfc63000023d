"""A worker process of a run: works on the nodes that it is sent, and tells what happens.

Its only tie is a socket to the process that started it: when that ends, so does this. Signals are the
other's matter, which says what they mean for the run.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from gpufleet.records import dataclass

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They reach all processes of a terminal or a systemd unit; the run's own process handles them."""

Message: TypeAlias = tuple[Any, ...]
"""To a worker: ("call", number, function, arguments), ("stop", signal), ("hurry",), ("end",).
From it: ("event", host, phase, detail), ("log", record), ("done", number, result),
("failed", number, what)."""


@dataclass(frozen=True)
class Setup:
    """What a worker is told first. Passphrases go from a process to its own child, over a socket that
    no one else has; they are in no argument list, environment or file."""

    run_id: str
    share: int
    threads: int
    passphrases: Mapping[str, bytes]
    levels: Mapping[str, int]
    """What is logged, by logger."""


def main() -> None:
    """Started by `workers.py` with these signals blocked, so that none comes too early."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    gc.set_threshold(200_000, 10, 10)  # as in __main__.py
    code = 1
    try:
        with contextlib.suppress(EOFError, OSError):  # the run's process is gone
            _serve(Connection(int(sys.argv[1])))
            code = 0
    finally:
        # Scripts on nodes end by themselves once nobody listens; no thread is waited for.
        os._exit(code)


def _serve(connection: Connection) -> None:
    from gpufleet.run.interrupt import Interrupt  # noqa: PLC0415  # signals are ignored first
    from gpufleet.run.task import Desk, close_desk, keep_desk  # noqa: PLC0415
    from gpufleet.ssh import Network  # noqa: PLC0415
    from gpufleet.ssh.keys import unlock_with  # noqa: PLC0415

    setup: Setup = connection.recv()
    sending = threading.Lock()

    def send(*message: Any) -> None:  # noqa: ANN401  # a Message's parts
        with sending, contextlib.suppress(OSError):  # gone: the loop below sees it as well
            connection.send(message)

    unlock_with(setup.passphrases)
    for name, level in setup.levels.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).addHandler(_Forward(send))
    interrupt = Interrupt()
    network = Network(setup.share)
    keep_desk(
        setup.run_id,
        Desk(interrupt, network, lambda *event: send("event", *event)),
    )
    pool = ThreadPoolExecutor(setup.threads, "gpufleet")
    while True:
        verb, *rest = connection.recv()
        if verb == "call":
            pool.submit(_call, send, *rest)
        elif verb == "stop":
            threading.Thread(target=interrupt.stop, args=rest, daemon=True).start()
        elif verb == "hurry":
            interrupt.hurried = True
        else:
            close_desk(setup.run_id)
            return


def _call(
    send: Callable[..., None],
    number: int,
    function: Callable[..., object],
    arguments: tuple[Any, ...],
) -> None:
    try:
        result = function(*arguments)
    except Exception as error:
        logging.getLogger("gpufleet").exception("internal error")
        send("failed", number, f"internal error: {type(error).__name__}: {error}"[:300])
    else:
        send("done", number, result)


class _Forward(logging.Handler):
    """Hands log records to the run's process, as text."""

    def __init__(self, send: Callable[..., None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        if record.exc_info and record.exc_info[1]:
            record.msg += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        record.exc_info, record.exc_text = None, None
        try:
            self._send("log", record.__dict__)
        except Exception:  # noqa: BLE001  # what can't be sent: a log line is never an error of the run
            self.handleError(record)
