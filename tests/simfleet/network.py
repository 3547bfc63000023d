"""The loopback network that a fleet has for itself, and whether its sshd's listen.

127.0.0.0/8 is there without any set-up; nothing on the machine is configured here.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from .requirements import SimFleetError

PORTS = range(22022, 22122)
"""Below the ports that the kernel hands out, so that no outgoing connection sits on ours."""

PER_SUBNET = 200
LISTEN = "0A"


class Lease:
    """127.B.0.0/16 and a port, taken by binding its first address: the kernel lets one process do
    so, and gives it back when that process dies."""

    def __init__(self) -> None:
        for port in PORTS:
            for network in random.sample(range(64, 250), 20):
                taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                try:
                    taken.bind((f"127.{network}.0.1", port))
                except OSError:
                    taken.close()
                    continue
                self.network, self.port, self._socket = network, port, taken
                return
        raise SimFleetError("no free loopback network: is 127.64.0.0 to 127.249.0.0 all in use?")

    def address(self, index: int) -> str:
        """Of the node at `index`, from 127.B.1.1 on."""
        return f"127.{self.network}.{index // PER_SUBNET + 1}.{index % PER_SUBNET + 1}"

    def give_back(self) -> None:
        self._socket.close()


def table_entry(address: str, port: int) -> str:
    """127.64.1.2, 22022   ->   "0201407F:5606", as /proc/net/tcp has it on a little-endian host."""
    parts = bytes(int(part) for part in reversed(address.split(".")))
    return f"{parts.hex().upper()}:{port:04X}"


def await_listening(addresses: Iterable[tuple[str, int]], timeout_s: float = 60.0) -> None:
    """Waits until all of them listen; SimFleetError after `timeout_s`.

    Without connecting: each connection would cost an sshd a process.
    """
    wanted = {table_entry(address, port) for address, port in addresses}
    until = time.monotonic() + timeout_s
    while True:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        missing = wanted - {row[1] for row in rows if row[3] == LISTEN}
        if not missing:
            return
        if time.monotonic() > until:
            raise SimFleetError(
                f"{len(missing)} of {len(wanted)} sshd's don't listen: see sshd.log"
            )
        time.sleep(0.005)
