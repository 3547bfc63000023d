"""Raw node output → Observation: all that one look or act returned. Pure: no I/O, no verdict.

What couldn't be read is said (`Sample.blind`), never left empty: an empty list of processes from a
node that wouldn't show them must not pass for a node without processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field

from gpufleet.observation.act import ActLog, Again, parse_act, parse_again
from gpufleet.observation.gpus import (
    HEALTH_FIELDS,
    HUNG,
    App,
    GpuRow,
    Health,
    MemoryReading,
    parse_memory_csv,
    read_apps,
    read_health,
    read_memory,
    reading_words,
)
from gpufleet.observation.keepers import (
    Container,
    Unit,
    parse_units,
    read_containers,
    read_pods,
    read_user_units,
)
from gpufleet.observation.leftovers import Segment, parse_ports, parse_segments, unused
from gpufleet.observation.owner import Owner, parse_owner
from gpufleet.observation.processes import (
    Process,
    ancestors,
    pid_namespace,
    read_fuser,
    read_latecomers,
    read_links,
    read_processes,
    read_segments,
)
from gpufleet.records import dataclass
from gpufleet.transport import Answer

__all__ = [
    "HEALTH_FIELDS",
    "HOST_PID_NAMESPACE",
    "NOT_ROOT",
    "ActLog",
    "App",
    "Container",
    "GpuRow",
    "Health",
    "MemoryReading",
    "Observation",
    "Owner",
    "Process",
    "Sample",
    "Segment",
    "Unit",
    "ancestors",
    "parse_memory_csv",
    "parse_observation",
    "parse_owner",
    "parse_ports",
    "reading_words",
    "unused",
]

TICKS_PER_S = 100
"""Clock ticks per second in /proc on every Linux (USER_HZ); uptime has the same resolution."""

NOT_ROOT = "not root: other users' devices and programs can't be seen"

HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The first process namespace of every Linux (PROC_PID_INIT_INO); another one is a container's."""

_TIMED_OUT = {"124", "137"}


@dataclass(frozen=True)
class Sample:
    """One reading of memory, processes and holders, at `uptime_cs` hundredths of a second.

    `blind` says what couldn't be read and why; only where it is empty do `processes` and their
    devices tell the whole truth. `fuser` is None where it couldn't be run.
    """

    uptime_cs: int
    memory: MemoryReading
    processes: Mapping[int, Process]
    blind: tuple[str, ...]
    fuser: frozenset[int] | None
    asleep: frozenset[int] = frozenset()
    """Processes that were left out because they hang whoever reads them; of these only the
    state, the executable and the descriptors are known."""
    latecomers: Mapping[int, str] = field(default_factory=dict)
    """Holders that the list of processes lacks: pid → executable, "" where unknown."""
    segments: frozenset[str] = frozenset()
    """Files in /dev/shm that some process has open or mapped."""

    def holders(self) -> list[Process]:
        """Living processes that have a GPU device open or mapped, by pid."""
        return [p for _, p in sorted(self.processes.items()) if p.holds_gpu and not p.dead]

    def age_s(self, process: Process) -> int | None:
        """Whole seconds since it started, or None where the node's uptime couldn't be read."""
        if self.uptime_cs < 0:
            return None
        return max(0, (self.uptime_cs - process.start_ticks) // TICKS_PER_S)

    def has(self, process: Process) -> bool:
        """Does the very same process (pid and start time) still live in this sample?"""
        now = self.processes.get(process.pid)
        return now is not None and now.identity == process.identity and not now.dead


@dataclass(frozen=True)
class Observation:
    """One look or act: samples in order of time (the last one is the newest), and what is asked once.

    `failure` is the script's own word for why it couldn't work there. `locked` is the text of the
    lock's holder, None where nobody holds it. With either the rest is empty. `units_status` is
    systemctl's exit status, `none` where no systemd runs. `missing`: tools that the node lacks.
    """

    self_pid: int
    uid: int
    boot_id: str
    pid_namespace: str
    samples: tuple[Sample, ...]
    health: Health
    apps: tuple[App, ...] | None
    apps_hung: bool
    units: Mapping[str, Unit]
    units_status: str
    devices: tuple[str, ...]
    uids: Mapping[str, int]
    act: ActLog | None
    locked: str | None
    failure: str
    missing: tuple[str, ...] = ()
    containers: Mapping[str, Container] = field(default_factory=dict)
    pods: frozenset[str] = frozenset()
    segments: tuple[Segment, ...] = ()
    due: Mapping[str, Unit] = field(default_factory=dict)
    """Services that are starting, or waiting for it, whoever ended them."""
    user_units: Mapping[str, Unit] = field(default_factory=dict)
    """Users' services that were hit, by `UID:NAME`."""
    again: Again | None = None
    """This act had begun before, by another process of the same run."""

    @property
    def last(self) -> Sample:
        return self.samples[-1]

    @property
    def on_host(self) -> bool:
        """Seen from a machine's first process namespace, as far as it is known; not from a container."""
        return self.pid_namespace in {"", HOST_PID_NAMESPACE}


def parse_observation(answer: Answer) -> Observation:
    """Everything an answer of look.sh or act.sh says. Missing sections become blindness, not absence."""
    own = dict(line.split(" ", 1) for line in answer.text("self").split("\n") if " " in line)
    self_pid, uid = _number(own.get("pid")), _number(own.get("uid"))
    names = [n for n in ("1", "2") if answer.get(f"{n}/memory") or answer.get(f"{n}/gpus")]
    samples = tuple(_sample(answer, name, self_pid, uid) for name in names)
    return Observation(
        self_pid=self_pid,
        uid=uid,
        boot_id=own.get("boot", ""),
        pid_namespace=pid_namespace(answer, names[-1]) if names else "",
        samples=samples,
        health=read_health(answer),
        apps=read_apps(answer),
        apps_hung=(section := answer.get("apps")) is not None and section.status in HUNG,
        units=parse_units(answer.text("units")),
        due=parse_units(answer.text("due")),
        user_units=read_user_units(answer),
        units_status=units.status if (units := answer.get("units")) else "missing",
        devices=tuple(d for d in answer.text("devices").split() if not d.endswith("*")),
        uids={
            name.removeprefix("user."): _number(section.text)
            for name, section in answer.sections.items()
            if name.startswith("user.") and _number(section.text) >= 0
        },
        act=parse_act(answer.text("act")) if answer.get("act") else None,
        locked=answer.text("locked").strip() if answer.get("locked") else None,
        failure=answer.text("failed").strip(),
        missing=tuple(answer.text("missing").split()),
        containers=read_containers(answer),
        pods=read_pods(answer),
        segments=parse_segments(answer.text("shm")),
        again=parse_again(answer.text("again")),
    )


def _sample(answer: Answer, name: str, self_pid: int, uid: int) -> Sample:
    links = read_links(answer, name)
    processes = read_processes(answer, name, links)
    return Sample(
        uptime_cs=_number(answer.text(f"{name}/uptime")),
        memory=read_memory(answer, name),
        processes=processes,
        blind=tuple(_blindness(answer, name, processes, self_pid, uid)),
        fuser=read_fuser(answer, name),
        asleep=frozenset(map(int, re.findall(r"\b[0-9]+\b", answer.text(f"{name}/asleep")))),
        latecomers=read_latecomers(answer, name, links),
        segments=read_segments(answer, name),
    )


_FINE = {
    # grep says 1 for "no line" and 2 for a file that went away meanwhile, find says 1 for that
    "procs": {"0", "1", "2"},
    "uids": {"0", "1", "2"},
    "maps": {"0", "1", "2"},
    "links": {"0", "1"},
}
_WHAT = {"procs": "processes", "uids": "users", "links": "holders", "maps": "mappings"}


def _blindness(
    answer: Answer, name: str, processes: Mapping[int, Process], self_pid: int, uid: int
) -> Iterator[str]:
    """Why this sample's processes may not be all of them. A sample that sees well sees itself."""
    if uid != 0:
        yield NOT_ROOT
    for tool, what in _WHAT.items():
        section = answer.get(f"{name}/{tool}")
        if tool == "uids" and section is None:
            continue  # find told the users, and whether it did is seen below
        status = section.status if section else "missing"
        if tool == "maps" and section:
            status = next(
                iter(re.findall(r"^status (\w+)$", section.text, re.MULTILINE)), "missing"
            )
        if status in _TIMED_OUT:
            yield f"reading {what} took longer than its limit (a process hangs its readers?)"
        elif status not in _FINE[tool]:
            yield f"{what} could not be read (status {status})"
    own, init = processes.get(self_pid), processes.get(1)
    chain = [own, *ancestors(self_pid, processes)] if own else []
    if own is None or init is None or chain[-1] is None or chain[-1].ppid != 0:
        yield "the process list does not show the script's own ancestry"
        return
    if not own.args or not init.args:
        yield "command lines could not be read"
    if own.uid is None or init.uid is None:
        yield "users of processes could not be read"
    if uid == 0 and not (own.exe and init.exe):
        yield "executables and descriptors of other processes are hidden from root here"


def _number(text: str | None) -> int:
    """-2 for what isn't a number: no pid, no user and no time is ever that."""
    stripped = (text or "").strip()
    return int(stripped) if stripped.isascii() and stripped.isdigit() else -2
