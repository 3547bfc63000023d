"""What would bring a node further than killing: a GPU reset, a reboot, or neither, and why not. Pure.

A rung is for nodes on which every single finding is one that it ends. Where something stands that it
doesn't (a GPU is missing, workload came back, a holder is spared, a reading wasn't seen), the node is
left to people.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpufleet.judge.daemons import VITAL
from gpufleet.judge.finding import Judgement
from gpufleet.model import Verdict
from gpufleet.observation import Observation, Process
from gpufleet.plan import Decision, Plan, job_above
from gpufleet.plan.program import program_name
from gpufleet.policy import Policy
from gpufleet.records import dataclass

Rung = Literal["", "gpu-reset", "reboot"]

DAEMON_UNITS = (
    "dcgm-exporter.service",
    "nvidia-dcgm-exporter.service",
    "nvsm.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvlsm.service",
)
"""What a GPU reset stops, in this order, where it runs; it is refused while any client is left. The
fabric manager goes after its clients and comes back before them, and sets up the whole fabric anew.
Not nvidia-imex: its domain spans other nodes, so that a node where it runs isn't reset from here."""

_PASSING = frozenset({"nvidia-smi", "nvidia-debugdump", "dcgmi", "nvtop"})
"""Clients that end by themselves; the node looks again before the reset."""


@dataclass(frozen=True)
class NextRung:
    """`rung`: the least that would help, "" for none; `why_not`: it isn't taken although it would."""

    rung: Rung = ""
    why_not: str = ""


def next_rung(
    observation: Observation,
    plan: Plan,
    judgement: Judgement,
    policy: Policy,
    *,
    done: frozenset[str] = frozenset(),
    planned: bool = False,
) -> NextRung:
    """The rung that is due. `done`: those taken already, which help no more. `planned`: what a kill
    would end first counts as ended, as a dry run wants it."""
    cures = judgement.cures - ({"kill"} if planned else set())
    if judgement.verdict not in {Verdict.BROKEN, Verdict.DIRTY} or not observation.samples:
        return NextRung()
    if not cures or cures & {"", "kill"} or policy.escalate == "none":
        return NextRung()
    rung: Rung = "reboot" if "reboot" in cures or "gpu-reset" in done else "gpu-reset"
    if rung == "gpu-reset" and (why := next(_daemons_in_the_way(observation, plan), "")):
        if policy.escalate != "reboot":
            return NextRung(rung, why)
        rung = "reboot"
    forbidden = rung == "reboot" and policy.escalate != "reboot"
    if rung in done or (forbidden and "gpu-reset" in done):
        return NextRung()
    if why := next(_obstacles(observation, plan, policy, rung), ""):
        return NextRung(rung, why)
    if forbidden:
        return NextRung(rung, f"escalate: {policy.escalate} doesn't allow it")
    return NextRung(rung)


def units_to_stop(observation: Observation) -> tuple[str, ...]:
    """The daemons that a GPU reset would find running, as far as this look shows, in order to stop."""
    owners = {
        p.owner.name for p in observation.last.processes.values() if p.owner.kind == "service"
    }
    active = {unit.name for unit in observation.units.values() if unit.active == "active"}
    return tuple(unit for unit in DAEMON_UNITS if unit in owners | active)


def vital_daemons(observation: Observation) -> frozenset[str]:
    """Those that run, by name: after a rung they are other processes, and there all the same."""
    if not observation.samples:
        return frozenset()
    running = observation.last.processes.values()
    return frozenset(program_name(p) for p in running if not p.dead) & frozenset(VITAL)


def _daemons_in_the_way(observation: Observation, plan: Plan) -> Iterator[str]:
    """GPU daemons that a GPU reset can neither stop nor do beside. At a boot they come back."""
    for process in observation.last.processes.values():
        if program_name(process) == "nvidia-imex" and not process.dead:
            yield f"nvidia-imex (pid {process.pid}) shares this node's fabric with other nodes"
    for decision in _spared_holders(plan):
        if decision.rule == "gpu-daemon" and not _is_stopped(decision.process):
            process = decision.process
            name = program_name(process)
            yield f"pid {process.pid} ({name}) holds a GPU and is none of the services it stops"


def _obstacles(observation: Observation, plan: Plan, policy: Policy, rung: Rung) -> Iterator[str]:
    if not observation.on_host:
        yield f"this login is in a process namespace of its own ({observation.pid_namespace})"
    if not plan.may_act:
        yield "a job runs here, or not all could be seen"
    for decision in _spared_holders(plan):
        if decision.rule != "gpu-daemon":
            yield f"pid {decision.process.pid} holds a GPU and is spared ({decision.why})"
    if rung != "reboot":
        return
    for decision in plan.spare:
        if decision.rule == "protect":
            yield f"pid {decision.process.pid} is spared ({decision.why})"
    if policy.jobs == "spare":
        yield from _jobs(observation)


def _spared_holders(plan: Plan) -> Iterator[Decision]:
    return (d for d in plan.spare if d.process.holds_gpu and not d.process.dead)


def _is_stopped(process: Process) -> bool:
    if program_name(process) in _PASSING or program_name(process) == "nvidia-imex":
        return True
    return process.owner.kind == "service" and process.owner.name in DAEMON_UNITS


def _jobs(observation: Observation) -> Iterator[str]:
    """Any job or pod at all: a reboot ends those without a GPU too."""
    processes = observation.last.processes
    for process in processes.values():
        if process.dead:
            continue
        if number := job_above(process, processes):
            yield f"slurm job {number} of {process.user} runs here"
        elif process.owner.kind == "pod":
            yield f"pod {process.owner.name} runs here"
