"""Observation + Policy → Plan: for each candidate, kill or spare, and by which rule. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpufleet.masking import masked_command, printable
from gpufleet.model import ProcessLine
from gpufleet.observation import Observation, Owner, Process, ancestors
from gpufleet.plan.patterns import SlowPattern, finder
from gpufleet.plan.program import program_name
from gpufleet.plan.rules import Hit, Setting, own_pids, package_work, spared_by
from gpufleet.policy import Policy
from gpufleet.records import dataclass

__all__ = ["NO_PLAN", "Decision", "Job", "Plan", "job_above", "make_plan"]


@dataclass(frozen=True)
class Decision:
    """The fate of one candidate, the stable name of the rule that decided, and the reason in words."""

    process: Process
    rule: str
    why: str
    age_s: int | None = None
    """Seconds since its start, at the look that this was decided on."""

    def line(self, signal: str = "") -> ProcessLine:
        process = self.process
        command = masked_command(process.args or (process.command,))
        owner = printable(str(process.owner))
        why = printable(self.why)
        return ProcessLine(
            process.pid, process.user, owner, command, self.rule, why, signal, self.age_s
        )


@dataclass(frozen=True)
class Job:
    """A scheduler's job or a pod that a candidate runs in: `name` as people say it, how to end it."""

    name: str
    user: str
    next_step: str


@dataclass(frozen=True)
class Plan:
    """`kill` in the order to signal: launchers before what they launched. `spare`: candidates only.

    `blind` says why nothing may be killed at all: what wasn't seen can't be judged. `jobs` are those
    that make the node SKIPPED; empty under `jobs: kill`.
    """

    kill: tuple[Decision, ...]
    spare: tuple[Decision, ...]
    jobs: tuple[Job, ...]
    blind: tuple[str, ...]

    @property
    def may_act(self) -> bool:
        return not self.blind and not self.jobs


NO_PLAN = Plan((), (), (), ())
"""Of an observation that shows nothing to decide on."""


def make_plan(
    observation: Observation,
    policy: Policy,
    *,
    spare_pids: frozenset[int] = frozenset(),
    hit_before: frozenset[Owner] = frozenset(),
    killed_commands: frozenset[str] = frozenset(),
) -> Plan:
    """Decide on the newest sample. `spare_pids`: gpufleet's own, where it runs on this node.
    `hit_before`: owners in which an earlier act killed, which shelter nothing any more: what starts
    there again is the same workload, and holds no GPU only because it is still loading. Likewise
    `killed_commands`, which may come back in a new container."""
    sample = observation.last
    try:
        hits = dict(_hits(sample.processes, policy))
    except SlowPattern as slow:
        reason = f"the pattern {slow.pattern} took {slow}: simplify it"
        return Plan((), (), (), (*sample.blind, printable(reason)))
    setting = Setting(
        observation,
        policy,
        own=own_pids(observation) | spare_pids,
        package_work=package_work(sample.processes),
        killed_commands=killed_commands,
    )
    setting = replace(setting, tainted=_tainted(sample.holders(), hits, setting) | hit_before)
    kill: dict[int, Decision] = {}
    spare: list[Decision] = []
    for pid, hit in hits.items():
        process = sample.processes[pid]
        if spared := spared_by(process, hit, setting):
            spare.append(Decision(process, *spared, sample.age_s(process)))
        else:
            kill[pid] = Decision(process, hit.rule, hit.why, sample.age_s(process))
    for decision in list(kill.values()):
        if decision.process.holds_gpu:
            for ancestor in _launchers(decision.process, sample.processes, setting):
                kill.setdefault(
                    ancestor.pid,
                    Decision(
                        ancestor,
                        "ancestor",
                        f"started pid {decision.process.pid}",
                        sample.age_s(ancestor),
                    ),
                )
    ordered = sorted(
        kill.values(), key=lambda d: (_depth(d.process, sample.processes), d.process.pid)
    )
    jobs = _jobs(ordered, sample.processes) if policy.jobs == "spare" else ()
    return Plan(tuple(ordered), tuple(spare), jobs, sample.blind)


def _tainted(
    holders: Sequence[Process], hits: Mapping[int, Hit], setting: Setting
) -> frozenset[Owner]:
    """Where a workload holds a GPU: a holder that no rule spares, whatever else it is hit by."""
    found = set()
    for process in holders:
        hit = hits[process.pid]
        if not spared_by(process, hit if hit.rule == "workload" else Hit("holder", ""), setting):
            found.add(process.owner)
    return frozenset(found)


def _hits(processes: Mapping[int, Process], policy: Policy) -> Iterator[tuple[int, Hit]]:
    """Candidates by pid: named workload first, then interpreters, then whoever holds a device."""
    workload = [(pattern, finder(pattern)) for pattern in policy.workload]
    interpreters = [(pattern, finder(pattern)) for pattern in policy.interpreters]
    for pid, process in sorted(processes.items()):
        if process.dead:
            continue
        command = process.command if process.args else ""
        if match := next((p for p, found in workload if command and found(command)), None):
            yield pid, Hit("workload", f"matches {match}")
        elif match := next((p for p, found in interpreters if command and found(command)), None):
            yield pid, Hit("interpreter", f"matches {match}")
        elif match := next((p for p, found in interpreters if found(process.exe)), None):
            yield pid, Hit("interpreter", f"executable {process.exe} matches {match}")
        elif process.holds_gpu:
            yield pid, Hit("holder", f"holds {_devices(process)}")


def _devices(process: Process) -> str:
    names = sorted(process.devices | process.mapped, key=lambda path: (len(path), path))
    rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + rest


def _launchers(
    holder: Process, processes: Mapping[int, Process], setting: Setting
) -> Iterator[Process]:
    """Living ancestors in the holder's session or unit, up to the first that a rule spares.

    They keep the server's port and start workers again, though they hold no GPU themselves.
    """
    for ancestor in ancestors(holder.pid, processes):
        related = ancestor.session == holder.session or (
            bool(holder.owner.kind) and ancestor.owner == holder.owner
        )
        if ancestor.dead or not related or spared_by(ancestor, Hit("ancestor", ""), setting):
            return
        yield ancestor


def _depth(process: Process, processes: Mapping[int, Process]) -> int:
    return sum(1 for _ in ancestors(process.pid, processes))


def _jobs(decisions: list[Decision], processes: Mapping[int, Process]) -> tuple[Job, ...]:
    """By control group; where Slurm tracks its processes otherwise, by the slurmstepd above them."""
    found: dict[str, Job] = {}
    for decision in decisions:
        process, owner = decision.process, decision.process.owner
        number = job_above(process, processes)
        if number:
            step = f"squeue -j {number}  # after asking {process.user}: scancel {number}"
            found.setdefault(number, Job(f"job {number}", process.user, step))
        elif owner.kind == "pod":
            step = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data"
            found.setdefault(owner.name, Job(f"pod {owner.name}", process.user, step))
    return tuple(found.values())


def job_above(process: Process, processes: Mapping[int, Process]) -> str:
    """The number of its Slurm job. `slurmstepd: [123.batch]` among the ancestors -> "123"."""
    if process.owner.kind == "job":
        return process.owner.name
    for ancestor in ancestors(process.pid, processes):
        if program_name(ancestor) == "slurmstepd":
            match = re.search(r"\[([0-9]+)\.", ancestor.command)
            return match[1] if match else ""
    return ""
