"""Connections that are begun before they are asked for: while this process still loads the SSH
libraries, nodes start an sshd for us."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from gpufleet.policy import NodeSpec

if TYPE_CHECKING:
    from gpufleet.ssh.session import Session

MOST = 16
"""More than these aren't ready any sooner: loading takes 0.06 s, a login some 5 ms of this process."""


class Ahead:
    """Who takes one owns it; `close` ends those that nobody took."""

    def __init__(self, connect: Callable[[NodeSpec], Session]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._begun: dict[str, Future[Session]] = {}

    def begin(self, specs: Iterable[NodeSpec]) -> None:
        for spec in specs:
            with self._lock:
                begun = self._begun[spec.name] = Future()
            threading.Thread(target=self._open, args=(spec, begun), daemon=True).start()

    def take(self, name: str) -> Future[Session] | None:
        with self._lock:
            return self._begun.pop(name, None)

    def close(self) -> None:
        with self._lock:
            left = list(self._begun.values())
            self._begun.clear()
        for begun in left:
            begun.add_done_callback(_hang_up)

    def _open(self, spec: NodeSpec, begun: Future[Session]) -> None:
        try:
            begun.set_result(self._connect(spec))
        except BaseException as error:  # noqa: BLE001  # raised where it is taken
            begun.set_exception(error)


def _hang_up(begun: Future[Session]) -> None:
    if begun.exception() is None:
        begun.result().close()
