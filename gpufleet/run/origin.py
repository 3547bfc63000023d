"""Who runs this, from where, and which processes on this machine are the run's own."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufleet.reset import Here


def here() -> Here:
    """Own pid and all its ancestors (a runbook in Python, cron, the login shell)."""
    from gpufleet.reset import Here  # noqa: PLC0415  # only where nodes are worked on

    pids = {os.getpid()}
    pid = os.getppid()
    while pid > 1 and pid not in pids:
        pids.add(pid)
        pid = _parent(pid)
    return Here(
        _read("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/pid"), frozenset(pids)
    )


def _parent(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def person() -> str:
    """Who runs this, from where: `alice (as root)@ops1 pid 4711`."""
    return f"{login()}@{control_host()} pid {os.getpid()}"


def login() -> str:
    """`alice (as root)`: the person behind sudo counts. The user id, not $LOGNAME, says the rest."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    sudo = os.environ.get("SUDO_USER")
    return f"{sudo} (as {user})" if sudo and sudo != user else user


def control_host() -> str:
    return socket.gethostname()


def new_run_id() -> str:
    """Sorts by time and is unique among control hosts: `20260131-020000-9f3a1c`."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
