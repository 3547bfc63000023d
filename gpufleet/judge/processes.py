"""Processes between a node and CLEAN: alive, come back, unkillable, or seen by one tool only. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpufleet.judge.evidence import Evidence
from gpufleet.judge.finding import Cure, Finding
from gpufleet.masking import masked_command
from gpufleet.model import Verdict
from gpufleet.observation import Observation, Process
from gpufleet.plan import Decision, Plan, make_plan
from gpufleet.plan.names import GPU_DAEMONS
from gpufleet.plan.program import basename, named
from gpufleet.policy import Policy


def workload_findings(evidence: Evidence, policy: Policy, ssh: str) -> Iterator[Finding]:
    """Processes that a kill should have ended. Seen only in the first of two samples counts too."""
    killed = {decision.process.identity for decision in evidence.killed}
    returned = {decision.process.identity for decision in evidence.returned}
    refused = evidence.after.act.refused if evidence.after.act else frozenset()
    groups: dict[str, list[Decision]] = {}
    for decision in evidence.plan.kill:
        identity = decision.process.identity
        if identity in refused:
            state = "could not be signalled"
        elif identity in killed:
            state = "survived KILL"
        elif identity in returned:
            state = "came back after a kill"
        else:
            state = "to be killed"
        groups.setdefault(state, []).append(decision)
    act = evidence.after.act
    stuck = act is not None and act.stop in {"dying", "unkillable"}
    cures: dict[str, Cure] = {"to be killed": "kill"}
    if stuck:
        cures["survived KILL"] = "reboot"
    for state, decisions in groups.items():
        step = stop_command(decisions[0].process, ssh)
        reason = f"{state}: {_named(decisions)}"
        yield Finding(Verdict.DIRTY, reason, step, again=True, cure=cures.get(state, ""))
    first = evidence.after.samples[0]
    if first is not evidence.after.last:
        earlier = make_plan(replace(evidence.after, samples=(first,)), policy)
        gone = [d for d in earlier.kill if not evidence.after.last.has(d.process)]
        if gone:
            reason = f"ran in the first of two samples: {_named(gone)}"
            yield Finding(Verdict.DIRTY, reason, stop_command(gone[0].process, ssh), again=True)


def _named(decisions: Sequence[Decision]) -> str:
    """`pid 60 of root (python3 train.py, sglang.service) and 9 more`"""
    process = decisions[0].process
    owner = f", {process.owner}" if str(process.owner) else ""
    rest = f" and {len(decisions) - 1} more" if len(decisions) > 1 else ""
    command = decisions[0].line().command[:80]
    return f"pid {process.pid} of {process.user} ({command}{owner}), state {process.state}{rest}"


def stop_command(process: Process, ssh: str) -> str:
    """The owner's own way to stop what a kill can't end for good."""
    owner = process.owner
    if owner.kind == "service":
        return stop_unit(owner.name, ssh)
    if owner.kind == "user-service":
        return stop_unit(owner.name, ssh, owner.runtime)
    if owner.kind == "container":
        tool = owner.runtime if owner.runtime in {"docker", "podman"} else "crictl"
        return f"{ssh} {tool} stop {owner.name[:12]}"
    return f"{ssh} ps -o pid,ppid,stat,lstart,args -p {process.pid},{process.ppid}"


def stop_unit(name: str, ssh: str, user: str = "") -> str:
    """A unit's name may hold backslashes (systemd-escape), which two shells would eat."""
    if user:
        own = f"setpriv --reuid={user} --regid={user} --clear-groups env XDG_RUNTIME_DIR=/run/user/{user}"
        return f"{ssh} \"{own} systemctl --user stop '{name}'\""
    if "\\" in name:
        return f"{ssh} \"systemctl stop '{name}'\""
    return f"{ssh} systemctl stop {name}"


def stuck_findings(observation: Observation, ssh: str) -> Iterator[Finding]:
    act = observation.act
    if act is None:
        return
    if act.stop == "unkillable":
        yield Finding(
            Verdict.BROKEN,
            f"a thread ({act.stuck_thread}) stays in state D after KILL and does no work",
            f"{ssh} reboot",
            cure="reboot",
        )
    elif act.stop == "dying":
        reason = "killed processes are still dying at the deadline"
        step = f"{ssh} 'ps -eLo pid,tid,stat,comm | grep D'"
        yield Finding(Verdict.DIRTY, reason, step, cure="reboot")


def fuser_findings(observation: Observation, plan: Plan, ssh: str) -> Iterator[Finding]:
    """A holder that fuser names and our own scan doesn't: one of the two is wrong, so nothing is proven.

    Only processes that the same sample lists, and lists as holding nothing: a tool that came and
    went between the two readings is none of them.
    """
    sample = observation.last
    spared = {decision.process.pid for decision in plan.spare}
    for pid in sorted(sample.fuser or ()):
        process = sample.processes.get(pid)
        if process and not process.holds_gpu and not process.dead and pid not in spared:
            what = masked_command(process.args or (process.command,))[:80]
            reason = f"fuser says that pid {pid} ({what}) holds a GPU device, /proc doesn't show it"
            yield Finding(Verdict.UNKNOWN, reason, f"{ssh} ls -l /proc/{pid}/fd", again=True)


def latecomer_findings(observation: Observation, ssh: str) -> Iterator[Finding]:
    """Holders that weren't listed as processes: who changes pids faster than one reads isn't gone.

    A short-lived query of a monitor (nvidia-smi, dcgmi) that came between the readings is none.
    """
    for pid, exe in observation.last.latecomers.items():
        if not named(basename(exe), GPU_DAEMONS):
            reason = f"pid {pid} ({exe or 'unknown program'}) came to hold a GPU during the look"
            yield Finding(Verdict.UNKNOWN, reason, f"{ssh} 'fuser -v /dev/nvidia*'", again=True)


def monitor_findings(observation: Observation, plan: Plan, ssh: str) -> Iterator[Finding]:
    """A monitor is one only as long as no memory is charged to it, which must be known."""
    monitors = [decision for decision in plan.spare if decision.rule == "monitor"]
    if monitors and observation.apps is None:
        reason = f"charged memory could not be read, so this may be no monitor: {_named(monitors)}"
        yield Finding(
            Verdict.UNKNOWN, reason, f"{ssh} nvidia-smi --query-compute-apps=pid --format=csv"
        )
