"""The programs that we are measured against: how each runs one command on many hosts.

All of them check host keys, with the same key and the same known_hosts, and go to at most as many
hosts at once as gpufleet does by default. What isn't installed is named, not left out.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

AT_ONCE = 64
LIBRARIES = Path(__file__).with_name("libraries.py")
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Hosts:
    """Where a command is to run, as root."""

    addresses: Sequence[str]
    port: int
    identity: Path
    known_hosts: Path

    @property
    def ssh_options(self) -> list[str]:
        settings = ("BatchMode=yes", "StrictHostKeyChecking=yes", "LogLevel=ERROR")
        return [
            *("-F", "/dev/null", "-i", str(self.identity), "-p", str(self.port)),
            *("-o", f"UserKnownHostsFile={self.known_hosts}"),
            *(word for setting in settings for word in ("-o", setting)),
        ]


@dataclass(frozen=True)
class Call:
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


Builder = Callable[[Hosts, str], Call]


def program(name: str) -> str | None:
    beside = BIN / name
    return str(beside) if beside.exists() else shutil.which(name)


def pdsh(hosts: Hosts, command: str) -> Call:
    env = {"PDSH_SSH_ARGS": " ".join([*hosts.ssh_options, "-l%u", "%h"]), "PDSH_RCMD_TYPE": "ssh"}
    return Call(
        ["pdsh", "-f", str(AT_ONCE), "-l", "root", "-w", ",".join(hosts.addresses), command], env
    )


def clush(hosts: Hosts, command: str) -> Call:
    options = " ".join(hosts.ssh_options)
    listed = ",".join(hosts.addresses)
    clush = program("clush") or "clush"
    return Call(
        [clush, "-q", "-S", "-f", str(AT_ONCE), "-l", "root", "-o", options, "-w", listed, command]
    )


def pssh(hosts: Hosts, command: str) -> Call:
    listed = [word for address in hosts.addresses for word in ("-H", address)]
    options = ("-i", "-t", "0", "-p", str(AT_ONCE), "-l", "root", "-x", " ".join(hosts.ssh_options))
    return Call(["parallel-ssh", *options, *listed, command])


def ansible(hosts: Hosts, command: str) -> Call:
    env = {
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_SSH_ARGS": " ".join(hosts.ssh_options),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "LC_ALL": "C.UTF-8",
    }
    inventory = ",".join(hosts.addresses) + ","
    variables = f"ansible_port={hosts.port} ansible_user=root"
    ansible = program("ansible") or "ansible"
    return Call(
        [
            *(ansible, "all", "-i", inventory, "-e", variables, "-f", str(AT_ONCE)),
            *("-m", "raw", "-a", command),
        ],
        env,
    )


def library(name: str) -> Builder:
    def build(hosts: Hosts, command: str) -> Call:
        given = [str(hosts.identity), str(hosts.known_hosts), str(hosts.port), command]
        listed = ",".join(hosts.addresses)
        return Call([sys.executable, str(LIBRARIES), name, str(AT_ONCE), *given, listed])

    return build


PEERS = {
    "pdsh": pdsh,
    "clush": clush,
    "pssh": pssh,
    "ansible": ansible,
    "fabric ThreadingGroup": library("fabric"),
    "parallel-ssh": library("pssh"),
    "asyncssh": library("asyncssh"),
}
_ASK = {
    "pdsh": ["pdsh", "-V"],
    "clush": [program("clush") or "clush", "--version"],
    "pssh": ["parallel-ssh", "--version"],
    "ansible": [program("ansible") or "ansible", "--version"],
    "fabric ThreadingGroup": [sys.executable, "-c", "import fabric; print(fabric.__version__)"],
    "parallel-ssh": [
        *(sys.executable, "-c"),
        "import importlib.metadata, pssh; print(importlib.metadata.version('parallel-ssh'))",
    ],
    "asyncssh": [sys.executable, "-c", "import asyncssh; print(asyncssh.__version__)"],
}


def versions() -> dict[str, str]:
    """By peer; "" where it isn't installed."""
    found = {}
    for name, command in _ASK.items():
        try:
            asked = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            found[name] = ""
            continue
        lines = (asked.stdout or asked.stderr).strip().splitlines()
        found[name] = lines[0] if lines and asked.returncode == 0 else ""
    return found
