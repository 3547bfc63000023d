"""One thread that closes what outlives its deadline; paramiko waits without limit in places."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
            watch.over = True

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
            watch.expired = True
            watch.expire()


class Watch:
    """One deadline. `over`: the block ended in time; `expired`: it didn't."""

    def __init__(self, expire: Callable[[], None]) -> None:
        self.expire = expire
        self.over = False
        self.expired = False


WATCHDOG = Watchdog()
"""One for the process: watches are many, threads few."""
