"""Who is about to bring back what was killed: never CLEAN by one lucky sample. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.judge.daemons import VITAL_UNITS
from gpufleet.judge.evidence import Evidence
from gpufleet.judge.finding import Finding
from gpufleet.judge.processes import stop_unit
from gpufleet.model import Verdict
from gpufleet.observation.keepers import Unit
from gpufleet.observation.owner import Owner
from gpufleet.plan.patterns import SlowPattern, finder
from gpufleet.policy import Policy

_RESTARTING = {"always", "unless-stopped", "on-failure"}


def keeper_findings(evidence: Evidence, policy: Policy, ssh: str) -> Iterator[Finding]:
    """Units, containers and pods that were hit and will, or did, start again."""
    after = evidence.after
    told = [unit for unit in after.units.values() if unit.name not in VITAL_UNITS]
    told += [unit for unit in after.due.values() if _is_workload(unit, policy)]
    told += after.user_units.values()
    for unit in {(unit.user, unit.name): unit for unit in told}.values():
        if _comes_back(unit, evidence):
            yield Finding(
                Verdict.DIRTY,
                f"{unit.name} comes back ({unit.active}, {unit.sub}, Restart={unit.restart})",
                stop_unit(unit.name, ssh, unit.user),
            )
    owners = {decision.process.owner for decision in evidence.killed} | evidence.stopped
    for owner in sorted(owners, key=str):
        if owner.kind == "user-service" and f"{owner.runtime}:{owner.name}" not in after.user_units:
            yield Finding(
                Verdict.UNKNOWN,
                f"the manager of user {owner.runtime} did not tell the state of {owner.name}",
                f"{ssh} systemctl status user@{owner.runtime}.service",
            )
        elif owner.kind == "container":
            yield from _container_findings(evidence, owner, ssh)
        elif owner.kind == "pod" and owner.name in evidence.after.pods:
            yield Finding(
                Verdict.DIRTY,
                f"pod {owner.name} still exists: its kubelet starts what was killed again",
                f"kubectl get pods -A -o wide | grep {owner.name}  # then: kubectl delete pod",
            )


def keeper_warnings(evidence: Evidence) -> Iterator[str]:
    """What starts a unit that was hit though it doesn't restart by itself, and containers of which
    nobody on the node could tell."""
    owners = {decision.process.owner for decision in evidence.killed}
    for owner in sorted(owners, key=str):
        if owner.kind == "container" and owner.name not in evidence.after.containers:
            yield f"nobody could tell whether container {owner.name[:12]} starts again"
    hit = {d.process.owner.name for d in evidence.killed if d.process.owner.kind == "service"}
    for unit in evidence.after.units.values():
        if unit.name in hit and unit.triggered_by:
            yield f"{unit.name} is started by {unit.triggered_by}"


def _comes_back(unit: Unit, evidence: Evidence) -> bool:
    """Starting again; about to, when its stop is over; or running with a main process that wasn't
    there before, or that was killed and systemd doesn't know it yet."""
    if unit.active == "activating":
        return True
    if unit.active == "deactivating":
        return unit.restart not in {"", "no"}
    before = evidence.before.last.processes if evidence.before.samples else {}
    killed = {decision.process.pid for decision in evidence.killed}
    return (
        unit.active == "active"
        and unit.main_pid > 0
        and (unit.main_pid not in before or unit.main_pid in killed)
    )


def _is_workload(unit: Unit, policy: Policy) -> bool:
    """A pattern that takes too long counts as found: the unit may well bring it back."""
    try:
        patterns = (*policy.workload, *policy.interpreters)
        return any(finder(pattern)(unit.exec_start) for pattern in patterns)
    except SlowPattern:
        return True


def _container_findings(evidence: Evidence, owner: Owner, ssh: str) -> Iterator[Finding]:
    """Restarting, or running with a first process that wasn't there before. podman shows `exited` for
    the moment between death and restart; docker has a word of its own for it."""
    container = evidence.after.containers.get(owner.name)
    if container is None or container.restart not in _RESTARTING:
        return
    known = evidence.before.samples and container.pid in evidence.before.last.processes
    due = container.state == "restarting" or (
        container.state == "exited"
        and owner.runtime == "podman"
        and owner not in evidence.stopped  # stopped by name it stays so
    )
    if due or (container.state == "running" and not known):
        tool, name = owner.runtime, container.name.lstrip("/")
        yield Finding(
            Verdict.DIRTY,
            f"container {name} comes back ({container.state}, restart policy {container.restart})",
            f"{ssh} '{tool} update --restart=no {name} && {tool} stop {name}'",
        )
