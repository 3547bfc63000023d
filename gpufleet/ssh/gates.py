"""Logins at once at one address: an sshd drops what comes on top of its MaxStartups."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from gpufleet.errors import Unreachable

AT_ONE = 8
"""Below the 10 from which on a default-configured sshd drops at random."""


class Gate:
    """Places at one sshd: fewer after each time that it dropped us, down to one at a time."""

    def __init__(self, places: int = AT_ONE) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self.places = places

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """From before the connection to the end of the login: sshd counts that time as well."""
        with self._changed:
            self._changed.wait_for(lambda: self._inside < self.places)
            self._inside += 1
        dropped = False
        try:
            yield
        except Unreachable as error:
            dropped = error.transient and error.stage != "connect"
            raise
        finally:
            with self._changed:
                self._inside -= 1
                if dropped:
                    self.places = max(1, self.places // 2)
                self._changed.notify_all()


class Gates:
    """One `Gate` for each address and port."""

    def __init__(self, places: int = AT_ONE) -> None:
        self._lock = threading.Lock()
        self._places = places
        self._gates: dict[tuple[str, int], Gate] = {}

    def at(self, address: str, port: int) -> Gate:
        with self._lock:
            return self._gates.setdefault((address, port), Gate(self._places))
