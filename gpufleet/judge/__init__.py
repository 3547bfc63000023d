"""Observation + Policy → Verdict, reason, next step. Pure, and the only place that says CLEAN.

CLEAN is what is left when every part of the proof was asked for and none failed; a part that is
missing is a finding of its own. Nothing here may take "no data" for "fine".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpufleet.judge.daemons import daemon_findings, daemon_warnings
from gpufleet.judge.finding import Finding, Judgement, conclude
from gpufleet.judge.gpus import (
    health_findings,
    health_warnings,
    is_free,
    memory_findings,
    over,
)
from gpufleet.masking import masked_command
from gpufleet.model import Verdict
from gpufleet.observation import HOST_PID_NAMESPACE, NOT_ROOT, Observation, Process
from gpufleet.plan import Decision, Plan, make_plan
from gpufleet.policy import Policy

__all__ = ["Evidence", "Judgement", "is_free", "judge_dry_run", "judge_reset", "judge_status"]

IDLE_MEMORY_MIB = 64
"""Up to this, memory that nobody holds is a driver's own idle reading (4 MiB on H200 and B200, 39
with MIG) and a question of `tolerance`; above it, memory was leaked and only a reset brings it back."""

_SLACK_CS = 2
"""Both times of a settling pause are cut to hundredths."""


@dataclass(frozen=True)
class Evidence:
    """All that one node's reset learned: the first look, the newest observation and its plan.

    `killed`: every process signalled so far. `returned`: candidates that came after an act.
    """

    before: Observation
    after: Observation
    plan: Plan
    killed: tuple[Decision, ...] = ()
    returned: tuple[Decision, ...] = ()


def judge_reset(evidence: Evidence, policy: Policy, ssh: str) -> Judgement:
    """The verdict of a reset. `ssh` is the command that reaches the node, for next steps."""
    after, plan = evidence.after, evidence.plan
    early = list(_not_looked(after, ssh))
    if early:
        return conclude(early, (), otherwise=Verdict.UNKNOWN)
    if plan.jobs and not evidence.killed:
        return conclude(list(_job_findings(plan)), (), otherwise=Verdict.UNKNOWN)
    findings = [
        *_blind_findings(plan, ssh),
        *memory_findings(after.last.memory, policy, ssh),
        *_workload_findings(evidence, policy, ssh),
        *_memory_left(evidence, policy, ssh),
        *_stuck_findings(after, ssh),
        *_fuser_findings(after, plan, ssh),
        *health_findings(after.health, after.last.memory, ssh),
        *daemon_findings(evidence.before, after, ssh),
    ]
    if not findings:
        findings = list(_proof_gaps(after, policy, ssh))
    warnings = [*health_warnings(after.health), *daemon_warnings(evidence.before, after)]
    if policy.tolerance_mib and not findings:
        warnings.extend(_tolerated(after, policy))
    return conclude(findings, warnings, otherwise=Verdict.CLEAN)


def judge_dry_run(observation: Observation, plan: Plan, policy: Policy, ssh: str) -> Judgement:
    """What a reset would meet: its findings now, without acting. CLEAN only by the full proof."""
    judgement = judge_reset(Evidence(observation, observation, plan), policy, ssh)
    if judgement.verdict is Verdict.DIRTY and plan.kill:
        return replace(judgement, next_step="the same command without --dry-run")
    return judgement


def judge_status(observation: Observation, plan: Plan, policy: Policy, ssh: str) -> Judgement:
    """IDLE, BUSY, BROKEN or UNKNOWN from one sample. Not being root is said, and is no failure."""
    early = list(_not_looked(observation, ssh))
    if early:
        return conclude(early, (), otherwise=Verdict.UNKNOWN)
    memory = observation.last.memory
    own_eyes = [reason for reason in plan.blind if reason != NOT_ROOT]
    findings = [
        *(Finding(Verdict.UNKNOWN, reason, f"{ssh} id") for reason in own_eyes),
        *memory_findings(memory, policy, ssh),
        *health_findings(observation.health, memory, ssh),
        *daemon_findings(observation, observation, ssh),
    ]
    warnings = [*health_warnings(observation.health), *(r for r in plan.blind if r not in own_eyes)]
    busy = bool(over(memory, policy)) or bool(plan.kill)
    judgement = conclude(findings, warnings, otherwise=Verdict.BUSY if busy else Verdict.IDLE)
    if judgement.verdict is Verdict.BUSY:
        return replace(judgement, reason=_amounts(observation, policy))
    return judgement


def _not_looked(observation: Observation, ssh: str) -> Iterator[Finding]:
    if observation.failure:
        yield Finding(Verdict.UNKNOWN, observation.failure, f"{ssh} ls -ld /run/gpufleet")
    elif observation.locked is not None:
        holder = observation.locked or "it didn't say who it is"
        step = f"wait for it, or see: {ssh} fuser -v /run/gpufleet/lock"
        yield Finding(Verdict.SKIPPED, f"another reset holds this node: {holder}", step)
    elif not observation.samples:
        reason = "the node's answer holds no reading of nvidia-smi"
        yield Finding(Verdict.UNKNOWN, reason, f"{ssh} nvidia-smi")


def _job_findings(plan: Plan) -> Iterator[Finding]:
    for job in plan.jobs:
        yield Finding(
            Verdict.SKIPPED,
            f"{job.name} of {job.user} runs here",
            f"{job.next_step}  # or: --jobs kill",
        )


def _blind_findings(plan: Plan, ssh: str) -> Iterator[Finding]:
    for reason in plan.blind:
        yield Finding(Verdict.UNKNOWN, reason, f"{ssh} id")


def _workload_findings(evidence: Evidence, policy: Policy, ssh: str) -> Iterator[Finding]:
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
    for state, decisions in groups.items():
        step = _stop_command(decisions[0].process, ssh)
        yield Finding(Verdict.DIRTY, f"{state}: {_named(decisions)}", step, again=True)
    first = evidence.after.samples[0]
    if first is not evidence.after.last:
        earlier = make_plan(replace(evidence.after, samples=(first,)), policy)
        gone = [d for d in earlier.kill if not evidence.after.last.has(d.process)]
        if gone:
            reason = f"ran in the first of two samples: {_named(gone)}"
            yield Finding(Verdict.DIRTY, reason, _stop_command(gone[0].process, ssh), again=True)


def _named(decisions: Sequence[Decision]) -> str:
    """`pid 60 of root (python3 train.py, sglang.service) and 9 more`"""
    process = decisions[0].process
    owner = f", {process.owner}" if str(process.owner) else ""
    rest = f" and {len(decisions) - 1} more" if len(decisions) > 1 else ""
    command = decisions[0].line().command[:80]
    return f"pid {process.pid} of {process.user} ({command}{owner}), state {process.state}{rest}"


def _stop_command(process: Process, ssh: str) -> str:
    """The owner's own way to stop what a kill can't end for good."""
    owner = process.owner
    if owner.kind == "service":
        return f"{ssh} systemctl stop {owner.name}"
    if owner.kind == "container":
        tool = owner.runtime if owner.runtime in {"docker", "podman"} else "crictl"
        return f"{ssh} {tool} stop {owner.name[:12]}"
    return f"{ssh} ps -o pid,ppid,stat,lstart,args -p {process.pid},{process.ppid}"


def _memory_left(evidence: Evidence, policy: Policy, ssh: str) -> Iterator[Finding]:
    """Memory above the tolerance: whose is it, and can killing or waiting still help?"""
    observation = evidence.after
    rows = over(observation.last.memory, policy)
    if not rows:
        return
    amounts = _amounts(observation, policy)
    act = observation.act
    if evidence.plan.kill or (act and act.stop in {"dying", "unkillable"}):
        yield Finding(Verdict.DIRTY, amounts, f"{ssh} nvidia-smi", again=True)
        return
    dead = [app.pid for app in observation.apps or () if app.pid not in observation.last.processes]
    charged = (
        f", charged to pid {', '.join(map(str, dead))}, which no longer exists" if dead else ""
    )
    most = max(row.used_mib or 0 for row in rows)
    kept = [d for d in evidence.plan.spare if d.process.holds_gpu and _may_keep_memory(d)]
    still = act is not None and act.stop == "still"
    if kept:
        names = ", ".join(f"pid {d.process.pid} {d.line().command[:60]} ({d.why})" for d in kept)
        step = _spared_command(kept[0], ssh)
        reason = f"{amounts}, and spared processes may hold it: {names}{charged}"
        yield Finding(Verdict.DIRTY, reason, step, again=not still)
    elif most <= IDLE_MEMORY_MIB:
        yield Finding(
            Verdict.DIRTY,
            f"{amounts}, no process holds the device{charged}{_namespace(observation)}",
            f"if this is the driver's idle memory, set in fleet.yaml: tolerance: {most}",
            again=not still,  # it may be on its way out
        )
    elif still:
        yield Finding(
            Verdict.BROKEN,
            f"{amounts}, held by nobody and unchanged{charged}{_namespace(observation)}",
            f"{ssh} nvidia-smi --gpu-reset  # or reboot the node",
        )
    else:
        yield Finding(
            Verdict.DIRTY, f"{amounts}, not free in time{charged}", f"{ssh} nvidia-smi", again=True
        )


def _may_keep_memory(decision: Decision) -> bool:
    """Spared, and yet able to keep memory: all but the daemons that only have devices open."""
    return decision.rule != "gpu-daemon" or decision.process.computes


def _spared_command(decision: Decision, ssh: str) -> str:
    if "mps" in decision.line().command:
        return f"{ssh} 'echo quit | nvidia-cuda-mps-control'"
    return _stop_command(decision.process, ssh)


def _namespace(observation: Observation) -> str:
    """Said where memory has no owner: from inside a container one can't see who holds it."""
    if observation.pid_namespace in {"", HOST_PID_NAMESPACE}:
        return ""
    return f" (seen from process namespace {observation.pid_namespace}: a container?)"


def _amounts(observation: Observation, policy: Policy) -> str:
    """`GPU 0-7: 150000 MiB`: equal amounts folded."""
    rows = over(observation.last.memory, policy)
    by_amount: dict[int, list[int]] = {}
    for row in rows:
        by_amount.setdefault(row.used_mib or 0, []).append(row.index)
    parts = [f"GPU {_ranges(indices)}: {amount} MiB" for amount, indices in by_amount.items()]
    return ", ".join(parts)


def _ranges(indices: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _stuck_findings(observation: Observation, ssh: str) -> Iterator[Finding]:
    act = observation.act
    if act is None:
        return
    if act.stop == "unkillable":
        yield Finding(
            Verdict.BROKEN,
            f"a thread ({act.stuck_thread}) stays in state D after KILL and does no work",
            f"{ssh} reboot",
        )
    elif act.stop == "dying":
        reason = "killed processes are still dying at the deadline"
        yield Finding(Verdict.DIRTY, reason, f"{ssh} 'ps -eLo pid,tid,stat,comm | grep D'")


def _proof_gaps(observation: Observation, policy: Policy, ssh: str) -> Iterator[Finding]:
    """Nothing speaks against CLEAN; is it also proven? Two samples, seeing all, free and apart."""
    look = f"{ssh} nvidia-smi"
    if len(observation.samples) < 2:
        yield Finding(Verdict.UNKNOWN, "only one sample was taken", look, again=True)
        return
    first, second = observation.samples[0], observation.samples[-1]
    for sample in (first, second):
        if sample.blind:
            yield Finding(Verdict.UNKNOWN, sample.blind[0], f"{ssh} id")
        if not is_free(sample.memory, policy):
            reason = "memory was not free in both samples"
            yield Finding(Verdict.DIRTY, reason, look, again=True)
    apart = second.uptime_cs - first.uptime_cs
    if min(first.uptime_cs, second.uptime_cs) < 0:
        yield Finding(Verdict.UNKNOWN, "the samples carry no time", f"{ssh} cat /proc/uptime")
    elif apart < round(policy.settle_s * 100) - _SLACK_CS:
        yield Finding(Verdict.UNKNOWN, "the two samples are too close together", look, again=True)


def _fuser_findings(observation: Observation, plan: Plan, ssh: str) -> Iterator[Finding]:
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


def _tolerated(observation: Observation, policy: Policy) -> Iterator[str]:
    used = [row.used_mib or 0 for row in observation.last.memory.rows]
    if used and max(used) > 0:
        yield f"up to {max(used)} MiB count as free (tolerance: {policy.tolerance_mib} MiB)"
