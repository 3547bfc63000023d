"""Whose turn it is to be reset or rebooted: as many nodes at once as a batch has, else one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpufleet.model import NodeReport
from gpufleet.run.rolling import FAILURES, Rolling

_TICK_S = 0.2


def nobodys_turn(_host: str) -> str:
    """Where nodes of a run are worked on by several processes: none knows of the others' rungs."""
    return "only a run in one process (--processes 1) takes one node at a time"


class Turns:
    """Handed out to nodes' threads. A turn is the node's until its reset ends, so that whether it
    helped is known before the next begins."""

    def __init__(self, rolling: Rolling, count: int, interrupted: Callable[[], bool]) -> None:
        self._rolling = rolling
        self._count = count
        self._interrupted = interrupted
        self._places = rolling.batch.of(count) if rolling.batch else 1
        self._changed = threading.Condition()
        self._holders: set[str] = set()
        self._waiting: dict[str, float] = {}
        self._waited: dict[str, float] = {}
        self._ended: list[NodeReport] = []

    def take(self, host: str) -> str:
        """Waits for the host's turn: "", or why it doesn't come."""
        with self._changed:
            if host in self._holders:
                return ""
            self._waiting[host] = time.monotonic()
            try:
                while len(self._holders) >= self._places and not self._interrupted():
                    self._changed.wait(_TICK_S)
            finally:
                self._waited[host] = time.monotonic() - self._waiting.pop(host)
            if self._interrupted():
                return "interrupted"
            if why := self._rolling.verdict(self._ended, self._count):
                return why
            self._holders.add(host)
            return ""

    def end(self, host: str, report: NodeReport | None) -> None:
        """The host's reset is over, whether it had a turn or not."""
        with self._changed:
            self._holders.discard(host)
            if report is not None and report.verdict in FAILURES:
                self._ended.append(report)
            self._changed.notify_all()

    def waited_s(self, host: str) -> float:
        """How long it has waited so far, which isn't its own time."""
        with self._changed:
            since = self._waiting.get(host)
            return time.monotonic() - since if since is not None else self._waited.get(host, 0.0)
