"""A TCP proxy before real sshd's that fails each connection in its own way.

One listener for all addresses of 127.0.0.0/8: the address that a client dials says which node it is.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Literal

from typing_extensions import Self

Kind = Literal[
    "none", "refused", "silent", "hangs up", "garbage", "crumbs", "cut", "stall", "reset"
]

RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Fault:
    """What becomes of a connection; `after`: so many bytes of the server's have passed."""

    kind: Kind
    after: int = 0
    always: bool = True
    """On each connection to this address; else the first only."""


class FaultProxy:
    """`with FaultProxy() as proxy`: `place` gives a node an address, a fault and a server."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[Fault, tuple[str, int]]] = {}
        self._seen: dict[str, int] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("0.0.0.0", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        unused = socket.create_server(("127.0.0.1", 0))
        self.closed_port = unused.getsockname()[1]
        unused.close()

    def place(self, address: str, fault: Fault, server: tuple[str, int]) -> int:
        """The port to dial."""
        self._nodes[address] = fault, server
        self._seen[address] = 0
        return self.closed_port if fault.kind == "refused" else self.port

    def connections(self, address: str) -> int:
        return self._seen[address]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads = [old for old in self._threads if old.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stop.is_set():
            if select.select([self._listener], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self._start(self._serve, self._listener.accept()[0])

    def _serve(self, client: socket.socket) -> None:
        address = client.getsockname()[0]
        fault, server = self._nodes[address]
        self._seen[address] += 1
        if self._seen[address] > 1 and not fault.always:
            fault = Fault("none")
        with client, contextlib.suppress(OSError):
            if fault.kind == "hangs up":
                return
            if fault.kind == "garbage":
                client.sendall(random.Random(address).randbytes(400) + b"\r\n")
                self._await_end(client)
            elif fault.kind == "silent":
                self._await_end(client)
            elif fault.kind == "crumbs":
                while not self._ended(client, 0.2):
                    client.sendall(b"x")
            else:
                with socket.create_connection(server, 10) as upstream:
                    self._relay(client, upstream, fault)

    def _relay(self, client: socket.socket, upstream: socket.socket, fault: Fault) -> None:
        passed = 0
        while not self._stop.is_set():
            for ready in select.select([client, upstream], [], [], 0.1)[0]:
                data = ready.recv(65536)
                if not data:
                    return
                if ready is client:
                    upstream.sendall(data)
                    continue
                if fault.kind == "none":
                    client.sendall(data)
                    continue
                client.sendall(data[: fault.after - passed])
                passed += len(data)
                if passed < fault.after:
                    continue
                if fault.kind == "stall":
                    self._await_end(client)
                elif fault.kind == "reset":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                return

    def _await_end(self, client: socket.socket) -> None:
        while not self._ended(client, 0.1):
            pass

    def _ended(self, client: socket.socket, seconds: float) -> bool:
        if self._stop.is_set():
            return True
        return bool(select.select([client], [], [], seconds)[0]) and not client.recv(65536)
