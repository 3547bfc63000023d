"""One thread that closes what outlives its deadline; paramiko waits without limit in places."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("gpufleet")


class Watchdog:
    """Calls `expire` of each watch whose time is up, once. One daemon thread for all watches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: list[tuple[float, int, Watch]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, seconds: float, expire: Callable[[], None]) -> Iterator[Watch]:
        """While the block runs, `expire` is called after `seconds`; `Watch.expired` then says so."""
        watch = Watch(expire)
        with self._changed:
            entry = (time.monotonic() + seconds, next(self._count), watch)
            heapq.heappush(self._watches, entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._guard, daemon=True, name="watchdog")
                self._thread.start()
            self._changed.notify()
        try:
            yield watch
        finally:
            watch.end()

    def _guard(self) -> None:
        while True:
            with self._changed:
                while self._watches and self._watches[0][2].over:
                    heapq.heappop(self._watches)
                now = time.monotonic()
                if not self._watches or self._watches[0][0] > now:
                    pause = self._watches[0][0] - now if self._watches else None
                    self._changed.wait(pause)
                    continue
                watch = heapq.heappop(self._watches)[2]
            # Its own thread: closing can take seconds, and the others' time is up as well.
            threading.Thread(target=watch.run_out, daemon=True, name="watchdog-close").start()


class Watch:
    """One deadline. `over`: the block ended in time; `expired`: it didn't."""

    def __init__(self, expire: Callable[[], None]) -> None:
        self.over = False
        self.expired = False
        self._expire: Callable[[], None] | None = expire
        self._lock = threading.Lock()

    def end(self) -> None:
        """Safe to call twice. Lets go of what it would have closed: its place in the queue stays
        until its time comes, minutes later."""
        with self._lock:
            self.over = True
            self._expire = None

    def run_out(self) -> None:
        with self._lock:
            expire, self._expire = self._expire, None
            self.expired = expire is not None
        if expire is not None:
            try:
                expire()
            except Exception:  # the block itself tells what became of it
                log.debug("closing after a deadline", exc_info=True)


WATCHDOG = Watchdog()
"""One for the process: watches are many, threads few."""
