"""Stopping a run from outside, in two stages: finish tidily, or at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from gpufleet.policy import NodeSpec
from gpufleet.transport import Answer, Beat, Script, Transport

if TYPE_CHECKING:
    from gpufleet.ssh import Network  # 0.1 s that `--help` needn't pay


class Interrupt:
    """Stops a run from outside: the first signal in two stages, see `caught`."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.hurried = False
        """A second signal came: nobody is waited for, the report is made of what is known."""
        self.touched: set[str] = set()
        """Names of nodes on which a process may have been signalled."""
        self.also_cut: list[Callable[[], None]] = []
        """Ends what isn't a node's connection yet: logins under way."""
        self.also_stop: list[Callable[[int], None]] = []
        """Told the signal's number: other processes that work for this run."""
        self.also_hurry: list[Callable[[], None]] = []
        """Told of a second signal, once."""
        self._live: set[Transport] = set()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self.signal is not None

    def stop(self, number: int = signal.SIGINT) -> None:
        """Nothing new starts, and every connection is cut: scripts on nodes end by themselves."""
        self.signal = number
        with self._lock:
            live, self._live = self._live, set()
        for transport in live:
            transport.close()
        for cut in self.also_cut:
            cut()
        for tell in self.also_stop:
            tell(number)

    def tell_hurried(self) -> None:
        """Pass the second signal on. Not from a signal's handler: it may take locks."""
        tells, self.also_hurry = self.also_hurry, []
        for tell in tells:
            tell()

    def guard(self, transport: Transport) -> Transport:
        """Cut this connection as well, should the run be stopped."""
        with self._lock:
            self._live.add(transport)
        if self:
            transport.close()
        return transport

    def release(self, transport: Transport) -> None:
        with self._lock:
            self._live.discard(transport)

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """INT, TERM and HUP stop the run and still give a report; a second one waits for nobody,
        and a third doesn't wait for the report."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _frame: FrameType | None) -> None:
            if self.hurried:
                raise KeyboardInterrupt
            if self:
                self.hurried = True
                return
            # Closing connections takes locks that the interrupted thread may hold.
            threading.Thread(target=self.stop, args=(number,), daemon=True).start()
            self.signal = number

        # Ignored from the start (nohup, a script's background job): that stays so.
        numbers = [
            number
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN
        ]
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Connector:
    """Opens the SSH connection of one node, known to the interrupt while it lives."""

    def __init__(self, spec: NodeSpec, interrupt: Interrupt, network: Network) -> None:
        self._spec = spec
        self._interrupt = interrupt
        self._network = network

    def __call__(self) -> Transport:
        session = self._network.connect(self._spec)
        return self._interrupt.guard(Guarded(session, self._interrupt))

    def anyway(self) -> Transport:
        """One that the interrupt doesn't cut."""
        return self._network.connect(self._spec, anyway=True)


class Guarded:
    """A transport that the interrupt may close until it is closed."""

    def __init__(self, inner: Transport, interrupt: Interrupt) -> None:
        self._inner = inner
        self._interrupt = interrupt

    def run(self, script: Script, *, timeout_s: float, beat: Beat | None = None) -> Answer:
        if script.shielded:
            self._interrupt.release(self)
        return self._inner.run(script, timeout_s=timeout_s, beat=beat)

    def close(self) -> None:
        self._interrupt.release(self)
        self._inner.close()
