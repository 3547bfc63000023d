"""What a scene is made of: one `Proc` for each process, and how it is told to a node.

Pure: no process is started and nothing is read here; node/seed.py builds what this describes.
"""

from __future__ import annotations

import marshal
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Text = str | bytes


@dataclass(frozen=True)
class Proc:
    """One process of a scene. Executables named "python3" are the host's Python, all others a copy
    of perl under that name; both have exactly the command line asked for."""

    label: str
    """Name within the scene, for `parent` and for finding it again."""

    args: tuple[Text, ...]
    """The command line, one item for each argument; a str is encoded as the file system's names."""

    exe: str = "python3"
    """File name of the executable: "python3" becomes the host's `python3.NN`."""

    user: str | None = None
    """`None`: the parent's, or root."""

    owner: str | None = None
    """cgroup v2 path as /proc/PID/cgroup shows it; `None`: the parent's, or none (`0::/`)."""

    memory: Mapping[int, int] = field(default_factory=dict)
    """MiB on each GPU while this process, or a child that inherited from it, lives."""

    devices: tuple[str, ...] | None = None
    """Names below /dev that are opened once each; `None`: as CUDA does for the GPUs in `memory`."""

    maps: bool | None = None
    """Maps nvidiaN, nvidiactl, nvidia-uvm of its devices; `None`: when there is memory."""

    descriptors: bool = True
    """False: what is mapped isn't open any more (Python processes only)."""

    term: Literal["die", "ignore"] | float = "die"
    """What SIGTERM does; a number: the process ends so many seconds later."""

    parent: str | None = None
    """Label of the process that forks it; `None`: node init adopts it."""

    session: bool | None = None
    """Leads a session of its own; `None`: only without a parent."""

    tty: bool = False
    """Leads its session on a terminal of its own, as an interactive shell does."""

    comm: Text | None = None
    """`None`: file name of the first argument, as after exec or setproctitle; 15 bytes count."""

    retitled: bool = False
    """By setproctitle: the command line ends in the NUL bytes of the room that it had before."""

    respawn: float | None = None
    """Started again so many seconds after its end, by its parent (a "python3") or by node init."""

    container: bool = False
    """In a mount namespace of its own with device nodes made by mknod: no fuser outside sees it."""

    inherits: bool = False
    """Opens nothing itself: keeps its parent's descriptors and memory."""

    dead: bool = False
    """Ends as soon as its children are born; nvidia-smi still names it while they hold memory."""

    zombie: bool = False
    """Has ended, and its parent (a "python3") never asks."""

    deleted: bool = False
    """Its executable was removed since, as by an upgrade."""

    lag: float = 0.0
    """Seconds for which its memory stays after its last holder's death."""

    threads: int = 0
    """Threads besides the first (a "python3")."""

    dying: float = 0.0
    """Killed, it is a zombie at once, but its threads hold everything so many seconds longer, in
    state D (a "python3"; needs a kernel with the version 1 freezer)."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.:-]+", self.label) or self.label == "-":
            raise ValueError(f"label {self.label!r}: letters, digits and _ . : - only")
        if self.zombie and self.parent is None:
            raise ValueError(f"{self.label}: init reaps what has no parent")


Scene = tuple[Proc, ...]


@dataclass(frozen=True)
class RunningProcess:
    """A process of a scene as it runs: pid and start time name it for ever."""

    label: str
    pid: int
    """In the node's own namespace, as gpufleet sees it."""
    start_ticks: int
    """Field 22 of /proc/PID/stat."""
    args: tuple[bytes, ...]


def encoded(text: Text) -> bytes:
    return text if isinstance(text, bytes) else os.fsencode(text)


def running(scene: Scene, answer: Sequence[str]) -> list[RunningProcess]:
    """Lines "proc LABEL PID TICKS" of a node's answer, in the scene's order."""
    born = {label: (int(pid), int(ticks)) for _, label, pid, ticks in map(str.split, answer)}
    return [
        RunningProcess(proc.label, *born[proc.label], tuple(encoded(arg) for arg in proc.args))
        for proc in scene
        if proc.label in born
    ]


def longest_args(scene: Scene) -> int:
    """Bytes of room that the longest command line needs."""
    return max((sum(len(encoded(arg)) + 1 for arg in proc.args) for proc in scene), default=0)


def default_comm(args: Sequence[Text]) -> bytes:
    return encoded(args[0]).lstrip(b"-").rpartition(b"/")[2][:15]


def device_counts(proc: Proc) -> list[tuple[str, int]]:
    """What is opened and how often: as a PyTorch process does, with fewer of each."""
    if proc.inherits:
        return []
    if proc.devices is not None:
        return [(f"/dev/{name}", 1) for name in proc.devices]
    if not proc.memory or not proc.descriptors:
        return []
    gpus = [(f"/dev/nvidia{gpu}", 5) for gpu in proc.memory]
    return [*gpus, ("/dev/nvidiactl", 1), ("/dev/nvidia-uvm", 3)]


def mapped_paths(proc: Proc) -> list[str]:
    if proc.inherits or not (bool(proc.memory) if proc.maps is None else proc.maps):
        return []
    names = proc.devices
    if names is None:
        names = (*(f"nvidia{gpu}" for gpu in proc.memory), "nvidiactl", "nvidia-uvm")
    return [f"/dev/{name}" for name in names if re.fullmatch(r"nvidia(\d+|ctl|-uvm)", name)]


def check(scene: Scene) -> None:
    """Raises ValueError for what no node can build."""
    by_label = {proc.label: proc for proc in scene}
    if len(by_label) != len(scene):
        raise ValueError("two processes of the scene have the same label")
    for proc in scene:
        if proc.parent is None:
            continue
        parent = by_label.get(proc.parent)
        if parent is None:
            raise ValueError(f"{proc.label}: no process is labelled {proc.parent}")
        if (proc.respawn is not None or proc.zombie) and parent.exe != "python3":
            raise ValueError(
                f"{proc.label}: only a python3 parent respawns or forgets its children"
            )


def program_names(scene: Scene) -> set[str]:
    """File names of executables that a node needs besides Python."""
    return {proc.exe for proc in scene if proc.exe != "python3" or proc.deleted}


def encode(scene: Scene, users: Mapping[str, tuple[int, int]], python: str) -> bytes:
    """The scene as node/seed.py reads it; `users` maps names to uid and gid."""
    check(scene)
    by_label = {proc.label: proc for proc in scene}

    def owner(proc: Proc) -> str | None:
        if proc.owner is not None or proc.parent is None:
            return proc.owner
        return owner(by_label[proc.parent])

    def user(proc: Proc) -> str:
        if proc.user is not None or proc.parent is None:
            return proc.user or "root"
        return user(by_label[proc.parent])

    specs: list[dict[str, Any]] = []
    for proc in scene:
        uid, gid = users[user(proc)]
        comm = default_comm(proc.args) if proc.comm is None else encoded(proc.comm)[:15]
        is_python = proc.exe == "python3" and not proc.deleted
        specs.append(
            {
                "label": proc.label,
                "args": tuple(encoded(arg) for arg in proc.args),
                "python": is_python,
                "exe": python if proc.exe == "python3" else proc.exe,
                "comm": comm,
                "smi_name": encoded(proc.args[0]),
                "uid": uid,
                "gid": gid,
                "owner": owner(proc),
                "memory": tuple(sorted(proc.memory.items())),
                "devices": tuple(device_counts(proc)),
                "maps": tuple(mapped_paths(proc)),
                "descriptors": proc.descriptors,
                "term": proc.term,
                "parent": proc.parent,
                "session": proc.tty
                or (proc.parent is None if proc.session is None else proc.session),
                "tty": proc.tty,
                "retitled": proc.retitled,
                "respawn": proc.respawn,
                "container": proc.container,
                "inherits": proc.inherits,
                "dead": proc.dead,
                "zombie": proc.zombie,
                "deleted": proc.deleted,
                "lag": proc.lag,
                "threads": max(proc.threads, 1 if proc.dying else 0),
                "dying": proc.dying,
            }
        )
    return marshal.dumps(specs, 2)  # 2: read alike by every Python 3
