"""Who started a process, by its control group: a unit, a container, a pod, a job. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from gpufleet.records import dataclass

Kind = Literal["", "session", "user-service", "service", "container", "pod", "job"]

_JOB = re.compile(r"/(?:slurm|[^/]*slurmstepd\.scope|slurm_)[^/]*/(?:.*/)?job_([0-9]+)(?:/|\Z)")
_POD = re.compile(r"kubepods.*?pod([0-9a-f]{8}[-_0-9a-f]{24,28})")
_CONTAINER = re.compile(r"(?:/|([a-z-]+)-)([0-9a-f]{64})(?:\.scope)?(?:/|\Z)")
_DOCKER_FOLDER = re.compile(r"/(docker|lxc|libpod_parent|machine)/")
_USER_MANAGER = re.compile(r"user@([0-9]+)\.service")
_RUNTIMES = {
    "docker": "docker",
    "libpod": "podman",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
}
_RANK: tuple[Kind, ...] = ("", "session", "user-service", "service", "container", "pod", "job")


@dataclass(frozen=True)
class Owner:
    """`kind` and the name that its own tools know it by: a unit, a container's id, a pod's uid, a
    job's number. `runtime` only for containers; for a user's service the user's number. No kind: a
    process outside of all that."""

    kind: Kind = ""
    name: str = ""
    runtime: str = ""

    def __str__(self) -> str:
        if self.kind == "container":
            return f"{self.runtime or 'container'}:{self.name[:12]}"
        if self.kind == "pod":
            return f"pod:{self.name}"
        if self.kind == "job":
            return f"slurm job {self.name}"
        return self.name


NOBODY = Owner()


@lru_cache(maxsize=4096)
def parse_owner(text: str) -> Owner:
    """The most telling line of /proc/PID/cgroup; both hierarchies may stand in it.

    0::/system.slice/nvidia-fabricmanager.service   ->   the service of that name
    """
    owners = [_of_path(line.split(":", 2)[2]) for line in text.split("\n") if line.count(":") >= 2]
    return max(owners, key=lambda owner: _RANK.index(owner.kind), default=NOBODY)


def _of_path(path: str) -> Owner:
    if match := _JOB.search(path):
        return Owner("job", match[1])
    if match := _POD.search(path):
        return Owner("pod", match[1].replace("_", "-"))
    if match := _CONTAINER.search(path):
        folder = _DOCKER_FOLDER.search(path)
        prefix = match[1] or (folder[1] if folder else "")
        return Owner("container", match[2], _RUNTIMES.get(prefix, prefix))
    parts = path.strip("/").split("/")
    services = [part for part in parts if part.endswith(".service")]
    # Whatever slice it is in (Slice= may name any): only what a user's manager started is the user's.
    managers = [match for part in services if (match := _USER_MANAGER.fullmatch(part))]
    if services and not managers:
        return Owner("service", services[-1])
    if services and not _USER_MANAGER.fullmatch(services[-1]):
        return Owner("user-service", services[-1], managers[-1][1])
    if parts[-1].endswith(".scope"):
        return Owner("session", parts[-1])
    return NOBODY
