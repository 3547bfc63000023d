"""How a Python process of a scene lives: answers signals, reaps and respawns children, and ends.

Waits without polling. Knows only its own description and its children's; what a child becomes is
the caller's business.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # signal itself takes 7 ms to load
import _thread
import os
import time

TYPE_CHECKING = False  # as typing's, which takes 12 ms to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAMES = {signal.SIGTERM: b"TERM", signal.SIGHUP: b"HUP", signal.SIGINT: b"INT"}
HANDLED = {*NAMES, signal.SIGCHLD}
"""Blocked from the fork on and taken up one by one, so that none is lost."""

for_ever = 86400.0


def start_threads(count: int) -> None:
    for _ in range(count):
        _thread.start_new_thread(lambda: time.sleep(10 * for_ever), ())


def end_by(number: int) -> None:
    """Ends as if the signal had never been caught."""
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    os.kill(os.getpid(), number)


class Life:
    """The rest of a process: `spec` is its own, `born` its children's descriptions by pid."""

    def __init__(
        self,
        spec: dict[str, Any],
        born: dict[int, dict[str, Any]],
        log: int,
        respawn: Callable[[dict[str, Any]], int],
    ) -> None:
        self.spec = spec
        self.born = born
        self.log = log
        self.respawn = respawn
        self.due: list[tuple[float, dict[str, Any]]] = []
        self.end_at: float | None = None

    def live(self) -> None:
        while True:
            got = signal.sigtimedwait(HANDLED, self.wait_s())
            if got is not None and got.si_signo in NAMES:
                self.answer(got.si_signo)
            if self.end_at is not None and time.monotonic() >= self.end_at:
                os._exit(143)
            self.reap()
            self.bring_back()

    def wait_s(self) -> float:
        moments = [moment for moment, _ in self.due]
        if self.end_at is not None:
            moments.append(self.end_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else for_ever

    def answer(self, number: int) -> None:
        os.write(self.log, NAMES[number] + b"\n")
        if number != signal.SIGTERM or self.spec["term"] == "die":
            end_by(number)
        elif self.spec["term"] != "ignore" and self.end_at is None:
            self.end_at = time.monotonic() + self.spec["term"]

    def reap(self) -> None:
        for pid, child in list(self.born.items()):
            if not child["zombie"] and os.waitpid(pid, os.WNOHANG)[0]:
                del self.born[pid]
                if child["respawn"] is not None:
                    self.due.append((time.monotonic() + child["respawn"], child))

    def bring_back(self) -> None:
        for moment, child in list(self.due):
            if moment <= time.monotonic():
                self.due.remove((moment, child))
                self.born[self.respawn(child)] = child
