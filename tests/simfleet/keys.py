"""A fleet's SSH keys: one that logs in everywhere, one for each host, and who knows them.

Keys are made for the fleet and go with its folder.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .requirements import SBIN, SimFleetError

AT_ONCE = 16


class Keys:
    """`identity` is the login's private key; host keys lie in the folders of their nodes."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.identity = folder / "id_ed25519"
        self.known_hosts = folder / "known_hosts"
        self._hosts = {name: folder / name / "host_key" for name in names}

    def make(self) -> None:
        paths = [self.identity, *self._hosts.values()]
        for start in range(0, len(paths), AT_ONCE):
            making = [start_keygen(path) for path in paths[start : start + AT_ONCE]]
            if sum(process.wait() for process in making):
                raise SimFleetError("ssh-keygen failed")

    @property
    def authorized(self) -> str:
        return self.identity.with_suffix(".pub").read_text()

    def write_known_hosts(
        self, addresses: Mapping[str, tuple[str, int]], wrong: Mapping[str, str] | None = None
    ) -> None:
        """One line for each node; `wrong` gives nodes another key ("" leaves the node out)."""
        lines = []
        for name, (address, port) in addresses.items():
            right = self._hosts[name].with_suffix(".pub").read_text().strip()
            key = (wrong or {}).get(name, right)
            if key:
                lines.append(f"[{address}]:{port},[{name}]:{port} {key}\n")
        self.known_hosts.write_text("".join(lines))


def start_keygen(path: Path) -> subprocess.Popen[bytes]:
    path.parent.mkdir(exist_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "simfleet", "-f", str(path)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env={"PATH": SBIN})
