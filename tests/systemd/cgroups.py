"""Where on this machine a node's control groups go. Only reads."""

from __future__ import annotations

from pathlib import Path

from tests.simfleet import SimFleetError


def cgroups() -> list[Path]:
    """Our own folder in each hierarchy that systemd uses: version 2, and `name=systemd` beside it.

    /proc/self/mountinfo   ->   "31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
    """
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            mounts.setdefault("", Path(before.split()[4]))
        elif kind == "cgroup" and "name=systemd" in options.split(","):
            mounts.setdefault("name=systemd", Path(before.split()[4]))
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path
    found = [mounts[name] / own[name].lstrip("/") for name in mounts if name in own]
    if "" not in mounts:
        raise SimFleetError("a node with systemd needs cgroup version 2: mount -t cgroup2")
    return found
