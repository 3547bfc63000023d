"""Observation + Policy → Verdict, reason, next step. Pure, and the only place that says CLEAN.

CLEAN is what is left when every part of the proof was asked for and none failed; a part that is
missing is a finding of its own. Nothing here may take "no data" for "fine".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpufleet.judge.daemons import daemon_findings, daemon_warnings
from gpufleet.judge.evidence import Evidence
from gpufleet.judge.finding import Finding, Judgement, conclude
from gpufleet.judge.gpus import (
    apps_findings,
    health_findings,
    health_warnings,
    is_free,
    memory_findings,
    over,
)
from gpufleet.judge.keepers import keeper_findings, keeper_warnings
from gpufleet.judge.leftover import amounts_over, memory_left, segment_warnings, tolerated
from gpufleet.judge.processes import (
    fuser_findings,
    latecomer_findings,
    monitor_findings,
    stuck_findings,
    workload_findings,
)
from gpufleet.model import Verdict
from gpufleet.observation import NOT_ROOT, Observation
from gpufleet.plan import Plan
from gpufleet.policy import Policy

__all__ = ["Evidence", "Judgement", "is_free", "judge_dry_run", "judge_reset", "judge_status"]

_SLACK_CS = 2
"""Both times of a settling pause are cut to hundredths."""


def judge_reset(evidence: Evidence, policy: Policy, ssh: str) -> Judgement:
    """The verdict of a reset. `ssh` is the command that reaches the node, for next steps."""
    after, plan = evidence.after, evidence.plan
    early = list(_not_looked(after, ssh))
    if early:
        return conclude(early, (), otherwise=Verdict.UNKNOWN)
    if plan.jobs and not evidence.killed:
        findings = [
            *_job_findings(plan),
            *memory_findings(after.last.memory, policy, ssh),
            *health_findings(after.health, after.last.memory, ssh),
            *daemon_findings(evidence.daemons_before or evidence.before, after, ssh),
        ]
        return conclude(findings, (), otherwise=Verdict.UNKNOWN)
    findings = [
        *_blind_findings(plan, ssh),
        *memory_findings(after.last.memory, policy, ssh),
        *workload_findings(evidence, policy, ssh),
        *memory_left(evidence, policy, ssh),
        *stuck_findings(after, ssh),
        *fuser_findings(after, plan, ssh),
        *latecomer_findings(after, ssh),
        *monitor_findings(after, plan, ssh),
        *_device_findings(after, ssh),
        *health_findings(after.health, after.last.memory, ssh),
        *apps_findings(after.apps_hung, ssh, after.last.memory),
        *daemon_findings(evidence.daemons_before or evidence.before, after, ssh),
        *keeper_findings(evidence, policy, ssh),
        *_asleep_findings(after, ssh),
    ]
    if not findings:
        findings = list(_proof_gaps(after, policy, ssh))
    warnings = [
        *health_warnings(after.health),
        *daemon_warnings(evidence.daemons_before or evidence.before, after),
        *_protect_warnings(after, policy),
        *segment_warnings(after),
        *keeper_warnings(evidence),
    ]
    if policy.tolerance_mib and not findings:
        warnings.extend(tolerated(after, policy))
    return conclude(findings, warnings, otherwise=Verdict.CLEAN)


def judge_dry_run(
    observation: Observation, plan: Plan, policy: Policy, ssh: str, *, host: str = "NODE"
) -> Judgement:
    """What a reset would meet: its findings now, without acting. CLEAN only by the full proof."""
    judgement = judge_reset(Evidence(observation, observation, plan), policy, ssh)
    if judgement.verdict is Verdict.DIRTY and plan.kill:
        return replace(judgement, next_step=f"gpufleet reset --hosts {host}")
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
        *apps_findings(observation.apps_hung, ssh, memory),
        *daemon_findings(observation, observation, ssh),
    ]
    warnings = [*health_warnings(observation.health), *(r for r in plan.blind if r not in own_eyes)]
    busy = bool(over(memory, policy)) or bool(plan.kill)
    judgement = conclude(findings, warnings, otherwise=Verdict.BUSY if busy else Verdict.IDLE)
    if judgement.verdict is Verdict.BUSY:
        return replace(judgement, reason=amounts_over(observation, policy))
    return judgement


def _protect_warnings(observation: Observation, policy: Policy) -> Iterator[str]:
    for entry in policy.protect:
        name = entry.removeprefix("user:")
        if name != entry and name not in observation.uids:
            yield f"protect: the node knows no user {name}"


def _not_looked(observation: Observation, ssh: str) -> Iterator[Finding]:
    if observation.failure:
        folder = "/run/gpufleet" in observation.failure
        step = f"{ssh} 'ls -ld /run/gpufleet; df -hi /run'" if folder else f"{ssh} 'echo $PATH'"
        yield Finding(Verdict.UNKNOWN, observation.failure, step)
    elif observation.locked is not None:
        holder = observation.locked or "it didn't say who it is"
        step = f"{ssh} 'cat /run/gpufleet/lock; fuser -v /run/gpufleet/lock'  # wait for it"
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


def _device_findings(observation: Observation, ssh: str) -> Iterator[Finding]:
    """Without device files there is nothing that a scan for holders could find."""
    if not observation.devices:
        reason = "there is no /dev/nvidia*, so nobody can be seen holding one"
        yield Finding(Verdict.UNKNOWN, reason, f"{ssh} 'ls -l /dev/nvidia*; nvidia-modprobe'")


def _asleep_findings(observation: Observation, ssh: str) -> Iterator[Finding]:
    """A process that hangs its readers can't be told from workload, nor be waited for."""
    for pid in sorted(observation.last.asleep & set(observation.last.processes)):
        process = observation.last.processes[pid]
        reason = f"pid {pid} ({process.comm}) is in state D and hangs whoever reads it"
        yield Finding(Verdict.UNKNOWN, reason, f"{ssh} cat /proc/{pid}/stack  # then reboot")


def _blind_findings(plan: Plan, ssh: str) -> Iterator[Finding]:
    for reason in plan.blind:
        yield Finding(Verdict.UNKNOWN, reason, f"{ssh} id")


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
