"""Many hosts from one: a simulated node whose sshd answers on every loopback address of a network."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from bench.peers import Hosts
from tests.simfleet import NodeSettings, SimFleet

QUERY = "nvidia-smi --query-gpu=index,memory.used --format=csv,noheader"


@contextlib.contextmanager
def crowd(count: int) -> Iterator[tuple[Hosts, Path]]:
    """`count` addresses of one node with dash as login shell, and a fleet.yaml that lists them."""
    port = _free_port()
    settings = NodeSettings(
        shell="/bin/dash",
        sshd_lines=(
            f"ListenAddress 0.0.0.0:{port}",
            "AllowUsers root@127.0.0.0/8",
            "MaxStartups 1000",
            "LogLevel ERROR",
        ),
    )
    with SimFleet(1, settings=settings) as fleet:
        network = next(iter(fleet)).address.split(".")[1]
        addresses = [f"127.{network}.{2 + i // 200}.{1 + i % 200}" for i in range(count)]
        key = next(iter(fleet)).folder.joinpath("host_key.pub").read_text().split()[:2]
        known_hosts = fleet.folder / "crowd_known_hosts"
        lines = [f"[{address}]:{port} {' '.join(key)}\n" for address in addresses]
        known_hosts.write_text("".join(lines))
        inventory = fleet.folder / "crowd.yaml"
        inventory.write_text(
            f"defaults:\n  port: {port}\n  identity_file: {fleet.identity_file}\n"
            f"  known_hosts: {known_hosts}\nhosts:\n"
            + "".join(f"  h{i:04d}: {address}\n" for i, address in enumerate(addresses))
        )
        yield Hosts(addresses, port, fleet.identity_file, known_hosts), inventory


def _free_port() -> int:
    """Below those that the kernel hands out to outgoing connections, and free on all addresses."""
    for port in range(22200, 22300):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("0.0.0.0", port))  # closed at once
            return port
    raise OSError("no free port from 22200 to 22299")
