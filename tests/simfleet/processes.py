"""The truth about a node's processes, read from outside through its own /proc.

Only reads. What ends while it is being read is left out.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeProcess:
    """One process of a node, as its /proc shows it."""

    pid: int
    start_ticks: int
    state: str
    """One letter of proc(5): R, S, D, T, t, Z, X."""
    ppid: int
    session: int
    tty: int
    """0: no terminal."""
    uid: int
    comm: bytes
    args: tuple[bytes, ...]
    """Without trailing NUL bytes; empty for a zombie."""
    exe: str
    """Empty when unreadable, as for a zombie."""
    owner: str
    """cgroup v2 path; "/" without an owner."""


def read_process(proc: Path, pid: int) -> NodeProcess | None:
    """`None` when there is no such process, or not any more."""
    folder = proc / str(pid)
    try:
        comm, _, rest = (folder / "stat").read_bytes().partition(b" (")[2].rpartition(b") ")
        fields = rest.split()
        command = (folder / "cmdline").read_bytes().rstrip(b"\0")
        cgroups = (folder / "cgroup").read_text().splitlines()
        uid = folder.stat().st_uid
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return None
    try:
        exe = str((folder / "exe").readlink())
    except OSError:
        exe = ""
    return NodeProcess(
        pid=pid,
        start_ticks=int(fields[19]),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        session=int(fields[3]),
        tty=int(fields[4]),
        uid=uid,
        comm=comm,
        args=tuple(command.split(b"\0")) if command else (),
        exe=exe,
        owner=next((line[3:] for line in cgroups if line.startswith("0::")), ""),
    )


def read_processes(proc: Path) -> list[NodeProcess]:
    """All processes of the node, ordered by pid, its init and sshd among them."""
    pids = sorted(int(path.name) for path in proc.iterdir() if path.name.isdigit())
    return [found for pid in pids if (found := read_process(proc, pid)) is not None]


def descriptors(proc: Path, pid: int) -> list[str]:
    """What the process has open, by the text of its links."""
    targets = []
    for link in (proc / str(pid) / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(str(link.readlink()))
    return sorted(targets)
