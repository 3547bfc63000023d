"""Whether the process of a recorded run is still there. Only the same machine can tell."""

from __future__ import annotations

import os
from pathlib import Path


def own_process() -> str:
    """Boot id, process namespace, pid and start time: no other process ever has these."""
    return _process(os.getpid())


def is_alive(process: str) -> bool:
    """False as well for one of another machine or namespace, which nobody here can know of."""
    pid = process.split()[-2:-1]
    return bool(pid) and pid[0].isdigit() and _process(int(pid[0])) == process


def _process(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    if state in "ZX":
        return ""
    return f"{boot} {namespace} {pid} {fields[18]}"
