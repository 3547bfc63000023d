"""The rules that spare a process, in the order in which they are tried. Pure.

One table, `RULES`, for operators to read: the stable name that JSON shows, what it says to people,
and the test. A rule returns the reason in words, or "" where it doesn't apply.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from gpufleet.observation import Observation, Owner, Process, ancestors
from gpufleet.plan.names import (
    BYSTANDERS,
    CARRIER_UNITS,
    CARRIERS,
    GPU_DAEMON_UNITS,
    GPU_DAEMONS,
    GPU_VIEWERS,
    PACKAGE_PROGRAMS,
    PACKAGE_SCRIPTS,
    PYTHON_SYSTEM_SCRIPTS,
)
from gpufleet.plan.program import (
    is_interactive_shell,
    named,
    named_script,
    program_name,
    script_names,
)
from gpufleet.policy import Policy
from gpufleet.records import dataclass

_ANSIBLE_TAIL = " && sleep 0"
"""How Ansible ends every command that it gives a shell; with pipelining the module comes on the
interpreter's standard input, and nothing else tells that it is one."""


@dataclass(frozen=True)
class Hit:
    """Why a process is a candidate at all: `workload`, `interpreter` or `holder`, and in words."""

    rule: str
    why: str


@dataclass(frozen=True)
class Setting:
    """What the rules may look at beside the process itself.

    `own`: pids of the look's own ancestors, session and descendants, and of gpufleet where it runs
    on this very node. `package_work`: pids around a package manager or an Ansible run. `tainted`:
    services, containers and pods in which a workload holds a GPU.
    """

    observation: Observation
    policy: Policy
    own: frozenset[int]
    package_work: frozenset[int] = frozenset()
    tainted: frozenset[Owner] = frozenset()
    killed_commands: frozenset[str] = frozenset()

    @property
    def app_pids(self) -> frozenset[int]:
        return frozenset(app.pid for app in self.observation.apps or ())


Test = Callable[[Process, Hit, Setting], str]


@dataclass(frozen=True)
class Rule:
    name: str
    test: Test


def _init(process: Process, _hit: Hit, _setting: Setting) -> str:
    return "pid 0 or 1" if process.pid <= 1 else ""


def _kernel(process: Process, _hit: Hit, _setting: Setting) -> str:
    return "kernel thread" if process.kernel else ""


def _own(process: Process, _hit: Hit, setting: Setting) -> str:
    return "gpufleet's own session on the node" if process.pid in setting.own else ""


def _sshd(process: Process, _hit: Hit, _setting: Setting) -> str:
    return "sshd" if named(program_name(process), ("sshd", "sshd-*")) else ""


def _shell(process: Process, _hit: Hit, _setting: Setting) -> str:
    return "login or interactive shell" if is_interactive_shell(process) else ""


def _carrier(process: Process, _hit: Hit, _setting: Setting) -> str:
    return "carries other processes" if named(program_name(process), CARRIERS) else ""


def _gpu_daemon(process: Process, _hit: Hit, _setting: Setting) -> str:
    # Of scripts only NVIDIA's own: a user's nvsm_train.py is no daemon.
    if named(program_name(process), GPU_DAEMONS) or "nvidia-bug-report.sh" in script_names(process):
        return "GPU daemon"
    if not process.computes and any(name in GPU_VIEWERS for name in script_names(process)):
        return "shows GPUs to a person"
    if process.owner.kind == "service" and named(process.owner.name, GPU_DAEMON_UNITS):
        return f"GPU daemon ({process.owner.name})"
    return ""


def _protected(process: Process, _hit: Hit, setting: Setting) -> str:
    for entry in setting.policy.protect:
        kind, _, name = entry.rpartition(":")
        if kind == "unit":
            matches = process.owner.name in {name, f"{name}.service"}
        elif kind == "user":
            uid = setting.observation.uids.get(name)
            # Where neither the name nor this process's own could be looked up (the directory is
            # down), it may be the one.
            unknown = uid is None and process.user.isdigit()
            matches = unknown or process.user == name or (uid is not None and process.uid == uid)
        else:
            path = process.exe or next(iter(process.args), "")
            matches = entry in (program_name(process), *script_names(process), path)
        if matches:
            return f"protect: {entry}"
    return ""


def _python_system(process: Process, _hit: Hit, setting: Setting) -> str:
    if process.mapped:
        return ""
    found = [name for name in script_names(process) if named_script(name, PYTHON_SYSTEM_SCRIPTS)]
    if found:
        return f"system program {found[0]}"
    if process.pid in setting.package_work and not process.holds_gpu:
        return "part of a package manager's or Ansible's run"
    return ""


def _bystander(process: Process, _hit: Hit, _setting: Setting) -> str:
    if process.holds_gpu:
        return ""
    name = program_name(process)
    return f"{name} only mentions the workload" if named(name, BYSTANDERS) else ""


def _service(process: Process, hit: Hit, setting: Setting) -> str:
    if hit.rule != "interpreter" or not shelters(process.owner):
        return ""
    if process.owner in setting.tainted or process.command in setting.killed_commands:
        return ""
    return f"{process.owner} holds no GPU"


def _monitor(process: Process, hit: Hit, setting: Setting) -> str:
    if hit.rule == "workload" or process.owner.kind not in {"service", "container", "pod"}:
        return ""
    if not process.holds_gpu or process.computes or process.pid in setting.app_pids:
        return ""
    return f"monitor in {process.owner}: has devices open, maps none"


RULES = (
    Rule("init", _init),
    Rule("kernel", _kernel),
    Rule("own", _own),
    Rule("sshd", _sshd),
    Rule("shell", _shell),
    Rule("carrier", _carrier),
    Rule("gpu-daemon", _gpu_daemon),
    Rule("protect", _protected),
    Rule("python-system", _python_system),
    Rule("bystander", _bystander),
    Rule("monitor", _monitor),
    Rule("service", _service),
)


def spared_by(process: Process, hit: Hit, setting: Setting) -> tuple[str, str] | None:
    """The first rule that spares the process, and why; None where none does."""
    for rule in RULES:
        if why := rule.test(process, hit, setting):
            return rule.name, why
    return None


def shelters(owner: Owner) -> bool:
    """Services below system.slice, containers and pods shelter their interpreters; carriers don't."""
    if owner.kind == "service":
        return not named(owner.name, CARRIER_UNITS)
    return owner.kind in {"container", "pod"}


def own_pids(observation: Observation) -> frozenset[int]:
    """The script's ancestors (shell, sudo, sshd up to pid 1), its session, and all they started for it."""
    processes = observation.last.processes
    own = {observation.self_pid, *(p.pid for p in ancestors(observation.self_pid, processes))}
    leader = processes.get(observation.self_pid)
    if leader is not None:
        own.update(p.pid for p in processes.values() if p.session == leader.session)
    return frozenset(own | _descendants({observation.self_pid}, processes))


def package_work(processes: Mapping[int, Process]) -> frozenset[int]:
    """Package managers and Ansible runs, all that they started, and what started them."""
    roots = {
        pid
        for pid, process in processes.items()
        if named(program_name(process), PACKAGE_PROGRAMS)
        or any(named_script(name, PACKAGE_SCRIPTS) for name in script_names(process))
        or process.command.endswith(_ANSIBLE_TAIL)
    }
    above = {ancestor.pid for pid in roots for ancestor in ancestors(pid, processes)}
    return frozenset(roots | above | _descendants(roots, processes))


def _descendants(roots: Collection[int], processes: Mapping[int, Process]) -> set[int]:
    return {
        pid
        for pid in processes
        if any(ancestor.pid in roots for ancestor in ancestors(pid, processes))
    }
