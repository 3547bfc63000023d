"""/proc's raw text → processes with owner, executable and the GPU devices they hold. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpufleet.observation.owner import NOBODY, Owner, parse_owner
from gpufleet.records import dataclass
from gpufleet.transport import Answer

_LINE = re.compile(r"([0-9]+)/(stat|cmdline|cgroup|status|maps):(.*)\Z", re.DOTALL)
_LISTED = re.compile(r"^([0-9]+)/(?:stat|cmdline|cgroup):", re.MULTILINE)
_LINK = re.compile(r"([0-9]+)/(exe|fd/[0-9]+)\Z")
_CAPS = r"nvidia-caps[a-z-]*/[a-z0-9-]+"
_DEVICE = re.compile(rf"/dev/(?:nvidia[a-z0-9-]*|{_CAPS})\Z")
_MAPPED = re.compile(
    rf"/dev/(?:nvidia(?:[0-9]+|ctl|-uvm|-uvm-tools|-modeset|-nv[a-z0-9]+)|{_CAPS})\Z"
)
"""A mapping doesn't show whether its file is a device, so only the names that drivers map count."""

_ENDED = frozenset("ZXx")
_THREAD = re.compile(r"([0-9]+)/task/([0-9]+)/(stat|cmdline):(.*)\Z", re.DOTALL)
_THREAD_LINK = re.compile(r"([0-9]+)/task/[0-9]+/fd/[0-9]+\Z")

_COMPUTE = re.compile(r"/nvidia(?:[0-9]+|-uvm)\Z")

_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of linux/sched.h, in field 9 of /proc/PID/stat."""

DELETED = " (deleted)"
"""The kernel's mark behind a link whose file was replaced, as after an upgrade."""


@dataclass(frozen=True)
class Process:
    """One process as one sample saw it.

    `start_ticks` counts clock ticks from boot and makes, with the pid, an identity that isn't
    reused. `args` is empty for kernel threads and zombies. `exe` is the resolved executable without
    the kernel's " (deleted)", "" where it couldn't be read. `devices` are the link texts of open GPU
    devices, `mapped` those of mappings. `uid` is the effective one, None where unread.
    """

    pid: int
    ppid: int
    session: int
    tty: int
    state: str
    start_ticks: int
    comm: str
    kernel: bool = False
    args: tuple[str, ...] = ()
    exe: str = ""
    uid: int | None = None
    user: str = ""
    owner: Owner = NOBODY
    devices: frozenset[str] = frozenset()
    mapped: frozenset[str] = frozenset()
    living_threads: int = 0
    """Of a leader that has ended (state Z): threads that haven't, and hold what it held."""

    @property
    def command(self) -> str:
        """The full command line, blanks between arguments; `[comm]` where there is none."""
        return " ".join(self.args) if self.args else f"[{self.comm}]"

    @property
    def holds_gpu(self) -> bool:
        return bool(self.devices or self.mapped)

    @property
    def computes(self) -> bool:
        """Maps a GPU or unified memory: only what computes does, a monitor has them open at most."""
        return any(_COMPUTE.search(path) for path in self.mapped)

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start_ticks

    @property
    def dead(self) -> bool:
        """Gone, or a zombie of which no thread lives: it holds nothing by itself any more."""
        return self.state in _ENDED and not self.living_threads


class Links(NamedTuple):
    """What find printed: executables by pid, GPU device links by pid, user names by uid, and the
    effective users of processes, which are those of their folders in /proc."""

    executables: dict[int, str]
    descriptors: dict[int, set[str]]
    names: dict[int, str]
    users: dict[int, int]


def read_processes(answer: Answer, sample: str, links: Links) -> dict[int, Process]:
    """All processes of one sample by pid. What ended while it was read is left out."""
    texts = _by_file(answer.text(f"{sample}/procs"))
    uids = {**links.users, **_uids(answer.text(f"{sample}/uids"))}
    executables, names = links.executables, links.names
    descriptors = {pid: set(devices) for pid, devices in links.descriptors.items()}
    mappings = _mappings(answer.text(f"{sample}/maps"))
    threads = _threads(answer.text(f"{sample}/threads"))
    for path, _, _, link in _records(answer.text(f"{sample}/threadlinks")):
        if (match := _THREAD_LINK.match(path)) and _DEVICE.search(link):
            descriptors.setdefault(int(match[1]), set()).add(link)
    found: dict[int, Process] = {}
    for pid, files in texts.items():
        stat = _stat(files.get("stat", ""))
        if stat is None:
            continue
        living, command = threads.get(pid, (0, ""))
        uid = uids.get(pid)
        found[pid] = Process(
            pid,
            *stat,
            args=_args(files.get("cmdline", "") or command),
            exe=executables.get(pid, "").removesuffix(DELETED),
            uid=uid,
            user=names.get(uid, str(uid)) if uid is not None else "?",
            owner=parse_owner(files.get("cgroup", "")),
            devices=frozenset(descriptors.get(pid, ())),
            mapped=frozenset(mappings.get(pid, ())),
            living_threads=living,
        )
    return found


def read_fuser(answer: Answer, sample: str) -> frozenset[int] | None:
    """The pids that fuser printed; None where fuser couldn't be run.

    Only plain numbers above 1 count: a word, 0, 1 or a negative number must never get near a kill.
    """
    section = answer.get(f"{sample}/fuser")
    if section is None or section.status not in {"0", "1"}:
        return None
    words = section.text.split()
    return frozenset(int(w) for w in words if w.isascii() and w.isdigit() and int(w) > 1)


def read_latecomers(answer: Answer, sample: str, links: Links) -> dict[int, str]:
    """Holders that the list of processes doesn't have, by pid, with their executables: they came
    between the two readings, or change faster than one can read."""
    listed = set(map(int, _LISTED.findall(answer.text(f"{sample}/procs"))))
    holders = {*links.descriptors, *_mappings(answer.text(f"{sample}/maps"))}
    holders |= read_fuser(answer, sample) or set()
    return {pid: links.executables.get(pid, "") for pid in sorted(holders - listed)}


def _threads(text: str) -> dict[int, tuple[int, str]]:
    """By pid: how many threads live, and the command line that they still show."""
    files: dict[tuple[int, int], dict[str, str]] = {}
    for line in text.split("\n"):
        if match := _THREAD.match(line):
            seen = files.setdefault((int(match[1]), int(match[2])), {})
            name = match[3]
            seen[name] = f"{seen[name]}\n{match[4]}" if name in seen else match[4]
    found: dict[int, tuple[int, str]] = {}
    for (pid, _), seen in files.items():
        stat = _stat(seen.get("stat", ""))
        if stat is not None and stat.state not in _ENDED:
            count, command = found.get(pid, (0, ""))
            found[pid] = count + 1, command or seen.get("cmdline", "")
    return found


def read_segments(answer: Answer, sample: str) -> frozenset[str]:
    """Files in /dev/shm that any process has open or mapped."""
    if not any("/dev/shm/" in answer.text(f"{sample}/{name}") for name in ("links", "maps")):
        return frozenset()
    opened = {link for _, _, _, link in _records(answer.text(f"{sample}/links"))}
    mapped = {line.partition(":")[2] for line in answer.text(f"{sample}/maps").split("\n")}
    return frozenset(
        path.removesuffix(DELETED) for path in opened | mapped if path.startswith("/dev/shm/")
    )


def pid_namespace(answer: Answer, sample: str) -> str:
    """`pid:[4026531836]`, or "" where it couldn't be read."""
    for path, _, _, link in _records(answer.text(f"{sample}/links")):
        if path == "self/ns/pid":
            return link
    return ""


def ancestors(pid: int, processes: Mapping[int, Process]) -> Iterator[Process]:
    """The living parents of `pid`, nearest first; ends at pid 1, outside the namespace, or in a loop."""
    seen = {pid}
    current = processes.get(pid)
    while current and (parent := processes.get(current.ppid)) and parent.pid not in seen:
        seen.add(parent.pid)
        yield parent
        current = parent


def _by_file(text: str) -> dict[int, dict[str, str]]:
    """`grep -H` puts the file's name before each line; lines of one file are joined again."""
    found: dict[int, dict[str, str]] = {}
    for line in text.split("\n"):
        if match := _LINE.match(line):
            files = found.setdefault(int(match[1]), {})
            name = match[2]
            files[name] = f"{files[name]}\n{match[3]}" if name in files else match[3]
    return found


class _Stat(NamedTuple):
    """The fields of /proc/PID/stat that count, in the order in which `Process` has them."""

    ppid: int
    session: int
    tty: int
    state: str
    start_ticks: int
    comm: str
    kernel: bool


def _stat(text: str) -> _Stat | None:
    """`4711 (python3) S 1 4711 …`: the name may hold anything, so the last bracket counts."""
    head, closing, tail = text.rpartition(")")
    fields = tail.split()
    if not closing or len(fields) < 20:
        return None
    try:
        return _Stat(
            ppid=int(fields[1]),
            session=int(fields[3]),
            tty=int(fields[4]),
            state=fields[0],
            start_ticks=int(fields[19]),
            comm=head.partition("(")[2],
            kernel=bool(int(fields[6]) & _KERNEL_THREAD),
        )
    except ValueError:
        return None


def _args(text: str) -> tuple[str, ...]:
    """A retitled process leaves its old length behind, as NULs."""
    stripped = text.rstrip("\0")
    return tuple(stripped.split("\0")) if stripped else ()


def _uids(text: str) -> dict[int, int]:
    """`4711/status:Uid:\t1000\t1000\t1000\t1000`: real, effective, saved, file system."""
    found = {}
    for pid, files in _by_file(text).items():
        words = files.get("status", "").split()
        if len(words) >= 3 and words[2].isdigit():
            found[pid] = int(words[2])
    return found


def _records(text: str) -> Iterator[tuple[str, str, str, str]]:
    """`PATH UID USER LINK` with NULs between, as find printed them."""
    for record in text.split("\0"):
        parts = record.split(" ", 3)
        if len(parts) == 4:
            yield parts[0], parts[1], parts[2], parts[3]


def read_links(answer: Answer, sample: str) -> Links:
    executables: dict[int, str] = {}
    descriptors: dict[int, set[str]] = {}
    names: dict[int, str] = {}
    users: dict[int, int] = {}
    for path, uid, user, link in _records(answer.text(f"{sample}/links")):
        if uid.isdigit():
            names[int(uid)] = user
            if path.isdigit():
                users[int(path)] = int(uid)
        match = _LINK.match(path)
        if match is None:
            continue
        if match[2] == "exe":
            executables[int(match[1])] = link
        elif _DEVICE.search(device := link.removesuffix(DELETED)):
            descriptors.setdefault(int(match[1]), set()).add(device)
    return Links(executables, descriptors, names, users)


def _mappings(text: str) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for line in text.split("\n"):
        match = _LINE.match(line)
        if match and _MAPPED.search(match[3]):
            found.setdefault(int(match[1]), set()).add(match[3])
    return found
