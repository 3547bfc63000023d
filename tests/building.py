"""Builders of raw node output: from a compact description to the text that node/*.sh prints.

Tests go through the parsers with it; nothing here knows what gpufleet makes of the text. The
default node is a healthy, idle 8-GPU node that has just been looked at twice, half a second apart,
over sshd 900, sshd's session process 901 and the shell 902 that runs the script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from gpufleet.observation import HEALTH_FIELDS, Observation, parse_observation
from gpufleet.plan import Plan, make_plan
from gpufleet.policy import Policy
from gpufleet.transport import Answer, Section

SELF = 902
PF_KTHREAD = 0x00200000
ALL_GPUS = tuple(f"/dev/nvidia{i}" for i in range(8))
COMPUTE = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
"""What a CUDA process has open and mapped (recorded on an H200)."""

USERS = {0: "root", 1000: "alice", 1001: "bob", 1002: "sglang"}
VITAL_UNITS = ("nvidia-fabricmanager", "nvlsm", "nvidia-imex", "nvidia-persistenced")


@dataclass(frozen=True)
class Proc:
    """One process. `args` is split at blanks if it is a string; `cgroup` is a path or whole lines.

    `exe`: where the link points to; by default found from the first argument. `session`: by default
    the process leads its own. `cuda`: it has the compute devices open and mapped.
    """

    pid: int
    args: str | Sequence[str] = ""
    ppid: int = 1
    exe: str | None = None
    comm: str | None = None
    uid: int = 0
    cgroup: str = "/user.slice/user-0.slice/session-3.scope"
    devices: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    cuda: bool = False
    session: int | None = None
    tty: int = 0
    state: str = "S"
    start: int = 5000
    kernel: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(self.args.split(" ")) if isinstance(self.args, str) else tuple(self.args)

    @property
    def executable(self) -> str:
        if self.exe is not None:
            return self.exe
        first = self.argv[0] if self.argv else ""
        if not first or self.kernel or self.state == "Z":
            return ""
        name = PurePosixPath(first).name.lstrip("-")
        if name in {"python", "python3"}:
            return "/usr/bin/python3.10"
        return first if first.startswith("/") else f"/usr/bin/{name}"

    @property
    def opened(self) -> tuple[str, ...]:
        return COMPUTE if self.cuda else self.devices

    @property
    def mapped(self) -> tuple[str, ...]:
        return COMPUTE if self.cuda else self.maps


OWN = (
    Proc(1, "/sbin/init", ppid=0, exe="/usr/lib/systemd/systemd", cgroup="/init.scope", start=1),
    Proc(900, "sshd: /usr/sbin/sshd -D", exe="/usr/sbin/sshd", cgroup="/system.slice/ssh.service"),
    Proc(901, "sshd: root@notty", ppid=900, exe="/usr/sbin/sshd"),
    Proc(SELF, "/bin/sh -s", ppid=901, exe="/usr/bin/dash"),
)
"""pid 1 and the script's own ancestry, as every look sees them."""

FABRIC_MANAGER = Proc(
    50,
    "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg",
    cgroup="/system.slice/nvidia-fabricmanager.service",
    devices=("/dev/nvidiactl", "/dev/nvidia-nvswitchctl"),
)
PERSISTENCED = Proc(
    51,
    "/usr/bin/nvidia-persistenced --user nvidia-persistenced",
    cgroup="/system.slice/nvidia-persistenced.service",
    devices=(*ALL_GPUS, "/dev/nvidiactl"),
)


def memory_rows(*used: object) -> str:
    """`memory_rows(0, 5)` -> "0, 0 MiB\\n1, 5 MiB\\n"; a word stays a word."""
    cells = (f"{u} MiB" if isinstance(u, int) else str(u) for u in used)
    return "".join(f"{index}, {cell}\n" for index, cell in enumerate(cells))


FREE = memory_rows(*[0] * 8)

HEALTHY = {
    "uuid": "GPU-{0}",
    "pstate": "P0",
    "gpu_recovery_action": "None",
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "mig.mode.current": "Disabled",
    "compute_mode": "Default",
    "memory.total": "143771 MiB",
}


def health_rows(
    changed: Mapping[int, Mapping[str, str]] | None = None,
    *,
    gpus: int = 8,
    fields: Iterable[str] = HEALTH_FIELDS,
) -> str:
    """All well, but for `changed`: GPU index -> field -> text."""
    lines = []
    for index in range(gpus):
        values = {**HEALTHY, **(changed or {}).get(index, {})}
        cells = [str(index), *(values[field].format(index) for field in fields)]
        lines.append(", ".join(cells) + "\n")
    return "".join(lines)


def unit_blocks(
    states: Mapping[str, str] | None = None, names: Iterable[str] = VITAL_UNITS, **more: str
) -> str:
    """`systemctl show` of the units; `states`: name -> ActiveState. Others aren't installed."""
    states = states or {"nvidia-fabricmanager": "active", "nvidia-persistenced": "active"}
    blocks = []
    for name in dict.fromkeys([*names, *states]):
        known = name in states
        values = {
            "Restart": "no",
            "MainPID": "50" if known else "0",
            "NRestarts": "0",
            "Id": f"{name}.service",
            "LoadState": "loaded" if known else "not-found",
            "ActiveState": states.get(name, "inactive"),
            "SubState": "running" if states.get(name) == "active" else "dead",
            "UnitFileState": "enabled" if known else "",
            **more,
        }
        blocks.append("".join(f"{key}={value}\n" for key, value in values.items()))
    return "\n".join(blocks)


def _grep(path: str, content: str) -> str:
    """`grep -aH '' PATH`: the name before each line; a last line without an end gets one."""
    lines = content.removesuffix("\n").split("\n") if content else []
    return "".join(f"{path}:{line}\n" for line in lines)


def stat_line(proc: Proc) -> str:
    comm = proc.comm
    if comm is None:
        comm = PurePosixPath(proc.executable or proc.argv[0]).name[:15]
    session = proc.pid if proc.session is None else proc.session
    flags = PF_KTHREAD if proc.kernel else 0x400100
    numbers = f"{proc.ppid} {session} {session} {proc.tty} -1 {flags} 120 0 3 0 11 7 0 0 20 0 9 0"
    return f"{proc.pid} ({comm}) {proc.state} {numbers} {proc.start} 33554432 500 1844674407 1 1\n"


def cmdline(proc: Proc) -> str:
    if proc.kernel or proc.state == "Z" or not any(proc.argv):
        return ""
    return "\0".join(proc.argv) + "\0"


def cgroup_lines(proc: Proc) -> str:
    if proc.kernel:
        return "0::/\n"
    return proc.cgroup if ":" in proc.cgroup.split("/")[0] else f"0::{proc.cgroup}\n"


def procs_text(procs: Iterable[Proc]) -> str:
    """`grep -aHs '' [0-9]*/stat [0-9]*/cmdline [0-9]*/cgroup`, in the order of the shell's glob."""
    ordered = sorted(procs, key=lambda p: str(p.pid))
    parts = [_grep(f"{p.pid}/stat", stat_line(p)) for p in ordered]
    parts += [_grep(f"{p.pid}/cmdline", cmdline(p)) for p in ordered]
    parts += [_grep(f"{p.pid}/cgroup", cgroup_lines(p)) for p in ordered]
    return "".join(parts)


def uids_text(procs: Iterable[Proc]) -> str:
    return "".join(
        f"{p.pid}/status:Uid:\t{p.uid}\t{p.uid}\t{p.uid}\t{p.uid}\n"
        for p in sorted(procs, key=lambda p: str(p.pid))
    )


def links_text(procs: Iterable[Proc], namespace: str = "pid:[4026531836]") -> str:
    """`find … -printf '%p %U %u %l\\0'`."""
    ordered = sorted(procs, key=lambda p: str(p.pid))
    records = [f"self/ns/pid 0 root {namespace}"]
    for proc in ordered:
        who = f"{proc.uid} {USERS.get(proc.uid, proc.uid)}"
        records.append(f"{proc.pid}/exe {who} {proc.executable}")
    for proc in ordered:
        who = f"{proc.uid} {USERS.get(proc.uid, proc.uid)}"
        records += [f"{proc.pid}/fd/{n} {who} {d}" for n, d in enumerate(proc.opened, start=5)]
    return "".join(f"{record}\0" for record in records)


def maps_text(procs: Iterable[Proc]) -> str:
    lines = {f"{p.pid}/maps:{path}" for p in procs for path in p.mapped}
    return "".join(f"{line}\n" for line in sorted({*lines, f"status {0 if lines else 1}"}))


def fuser_text(procs: Iterable[Proc]) -> str:
    """Bare pids: the names and letters go to standard error."""
    return "".join(f" {p.pid:5}" for p in procs if p.opened or p.mapped)


def sample(
    name: str, procs: Sequence[Proc], memory: str, status: str = "0", uptime_cs: int = 100_000
) -> dict[str, tuple[str, str]]:
    """The sections of one sample: name -> text and status."""
    found = fuser_text(procs)
    return {
        f"{name}/uptime": (f"{uptime_cs}\n", "0"),
        f"{name}/memory": (memory, status),
        f"{name}/procs": (procs_text(procs), "2"),  # files vanish while grep reads: its usual end
        f"{name}/uids": (uids_text(procs), "0"),
        f"{name}/links": (links_text(procs), "1"),
        f"{name}/maps": (maps_text(procs), "0"),
        f"{name}/fuser": (found, "0" if found else "1"),
    }


def answer(
    procs: Sequence[Proc] = (FABRIC_MANAGER, PERSISTENCED),
    *,
    memory: str = FREE,
    second: Sequence[Proc] | None = None,
    second_memory: str | None = None,
    samples: int = 2,
    apart_cs: int = 52,
    act: str | None = None,
    smi: str = "0",
    smi_says: str = "",
    health: str | None = None,
    apps: str = "",
    units: str | None = None,
    uid: int = 0,
    own: Sequence[Proc] = OWN,
    more: Mapping[str, tuple[str, str]] | None = None,
) -> Answer:
    """A finished answer. `procs` come beside the look's own; `second` is the second sample's."""
    sections = {
        "self": (f"pid {SELF}\nuid {uid}\nboot 0f1e\ndir /run/gpufleet\n", "0"),
        "missing": ("", "0"),
        "devices": ("".join(f"{d}\n" for d in (*ALL_GPUS, "/dev/nvidiactl")), "0"),
        **sample("1", [*own, *procs], memory, smi),
        "health": (health_rows() if health is None else health, "0"),
        "apps": (apps, "0"),
        "units": (unit_blocks() if units is None else units, "0"),
    }
    if samples == 2:
        late = procs if second is None else second
        used = memory if second_memory is None else second_memory
        sections |= sample("2", [*own, *late], used, smi, 100_000 + apart_cs)
    if act is not None:
        sections["act"] = (act, "0")
    for name in [n for n in sections if n.endswith("/memory")] if smi_says else ():
        sections[f"{name}.err"] = (smi_says, "0")
    sections |= more or {}
    made = {name: Section(name, text, status) for name, (text, status) in sections.items()}
    return Answer(made, started=True, finished=True)


def as_read_at_once(whole: Answer) -> Answer:
    """The same answer as quick.sh gives it: nvidia-smi's words among the processes, health beside the
    memory of the newest sample, users by the owners of their folders."""
    sections = dict(whole.sections)
    names = [name for name in ("1", "2") if f"{name}/memory" in sections]
    for name in names:
        memory = sections.pop(f"{name}/memory")
        words, kind = memory.text, "memory"
        if name == names[-1]:
            health = sections.pop("health").text.split("\n")
            rows = zip(words.split("\n"), health, strict=True)
            words = "\n".join(f"{a}, {b.partition(', ')[2]}" if a else "" for a, b in rows)
            kind = "gpus"
        sections[f"{name}/{kind}"] = Section(f"{name}/{kind}", "", memory.status)
        said = _grep("/run/gpufleet/smi.60.out", words)
        procs = sections[f"{name}/procs"]
        sections[f"{name}/procs"] = replace(procs, text=said + procs.text)
        uids = re.findall(
            r"^(\d+)/status:Uid:\t\d+\t(\d+)", sections.pop(f"{name}/uids").text, re.MULTILINE
        )
        owners = "".join(f"{pid} {uid} {USERS.get(int(uid), uid)} \0" for pid, uid in uids)
        links = sections[f"{name}/links"]
        bare = re.sub(
            r"^(\d+/\S+) \S+ \S+", r"\1 - -", links.text.replace("\0", "\n"), flags=re.MULTILINE
        )
        sections[f"{name}/links"] = replace(links, text=owners + bare.replace("\n", "\0"))
    return replace(whole, sections=sections)


def changed(whole: Answer, name: str, text: str | None = None, status: str | None = None) -> Answer:
    """The same answer with another text or status in one section, which may be new."""
    old = whole.get(name) or Section(name, "", "0")
    new = Section(name, old.text if text is None else text, status or old.status)
    return replace(whole, sections={**whole.sections, name: new})


def without(whole: Answer, *names: str) -> Answer:
    return replace(whole, sections={n: s for n, s in whole.sections.items() if n not in names})


def as_bytes(whole: Answer, token: str, *, noise: str = "", tail: str = "") -> bytes:
    """The answer as frame.sh puts it on the channel."""
    parts = [noise, f"\n@@{token} start\n"]
    for section in whole.sections.values():
        parts.append(f"\n@@{token} begin {section.name}\n{section.text}")
        parts.append(f"\n@@{token} end {section.name} {section.status}\n")
    parts += [f"\n@@{token} finish\n", tail]
    return "".join(parts).encode("utf-8", "surrogateescape")


def observe(*procs: Proc, **how: object) -> Observation:
    """One sample of a node with these processes."""
    return parse_observation(answer(procs, samples=1, **how))  # type: ignore[arg-type]


def plan_of(*procs: Proc, policy: Policy | None = None, **how: object) -> Plan:
    return make_plan(observe(*procs, **how), policy or Policy())


def fates(plan: Plan) -> dict[int, str]:
    """pid -> "kill RULE" or "spare RULE" for every candidate."""
    kill = {d.process.pid: f"kill {d.rule}" for d in plan.kill}
    return kill | {d.process.pid: f"spare {d.rule}" for d in plan.spare}


def killed(plan: Plan) -> list[int]:
    """The kill list, in the order to signal."""
    return [decision.process.pid for decision in plan.kill]
