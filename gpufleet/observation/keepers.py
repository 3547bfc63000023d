"""Who may start things again: systemd's units, containers, pods, as the node tells of them. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.records import dataclass
from gpufleet.transport import Answer


@dataclass(frozen=True)
class Unit:
    """systemd's own words on one unit; "" where it said nothing."""

    name: str
    load: str
    enabled: str
    active: str
    sub: str
    restart: str
    restarts: str
    main_pid: int = 0
    triggered_by: str = ""
    """Timers, sockets and paths that start it, blanks between."""
    exec_start: str = ""
    user: str = ""
    """Number of the user whose manager runs it; "" for the system's."""


@dataclass(frozen=True)
class Container:
    """What docker or podman says of one: state, pid of its first process, restart policy, name."""

    state: str
    pid: int
    restart: str
    name: str
    image: str = ""


def parse_units(text: str) -> dict[str, Unit]:
    """Blocks of `Key=value` lines with blank lines between, as `systemctl show` prints them."""
    units = {}
    for block in text.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        main = values.get("MainPID", "")
        if name := values.get("Id"):
            units[name] = Unit(
                name=name,
                load=values.get("LoadState", ""),
                enabled=values.get("UnitFileState", ""),
                active=values.get("ActiveState", ""),
                sub=values.get("SubState", ""),
                restart=values.get("Restart", ""),
                restarts=values.get("NRestarts", ""),
                main_pid=int(main) if main.isascii() and main.isdigit() else 0,
                triggered_by=values.get("TriggeredBy", ""),
                exec_start=values.get("ExecStart", ""),
            )
    return units


def read_user_units(answer: Answer) -> dict[str, Unit]:
    """Of the users' services asked about, by `UID:NAME`; left out where nobody answered."""
    found = {}
    for name, section in answer.sections.items():
        key = name.removeprefix("user-unit.")
        if name != key and section.status == "0":
            user = key.partition(":")[0]
            for unit in parse_units(section.text).values():
                found[key] = replace(unit, user=user)
    return found


def read_containers(answer: Answer) -> dict[str, Container]:
    """By container id; those that could not be asked are left out.

    docker inspect --format '{{.State.Status}} …'   ->   "restarting 0 always /sglang"
    """
    found = {}
    for name, section in answer.sections.items():
        words = section.text.split()
        if name.startswith("container.") and section.status == "0" and len(words) in {4, 5}:
            pid = int(words[1]) if words[1].isascii() and words[1].isdigit() else 0
            found[name.removeprefix("container.")] = Container(words[0], pid, *words[2:])
    return found


def read_pods(answer: Answer) -> frozenset[str]:
    """The uids of the pods asked about whose control group still exists."""
    return frozenset(
        name.removeprefix("pod.")
        for name, section in answer.sections.items()
        if name.startswith("pod.") and section.text.strip()
    )
