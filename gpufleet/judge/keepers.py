"""Who is about to bring back what was killed: never CLEAN by one lucky sample. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.judge.daemons import VITAL_UNITS
from gpufleet.judge.evidence import Evidence
from gpufleet.judge.finding import Finding
from gpufleet.model import Verdict
from gpufleet.observation.owner import Owner

_RESTARTING = {"always", "unless-stopped", "on-failure"}


def keeper_findings(evidence: Evidence, ssh: str) -> Iterator[Finding]:
    """Units, containers and pods that were hit and will, or did, start again."""
    yield from _unit_findings(evidence, ssh)
    owners = {decision.process.owner for decision in evidence.killed}
    for owner in sorted(owners, key=str):
        if owner.kind == "container":
            yield from _container_findings(evidence, owner, ssh)
        elif owner.kind == "pod" and owner.name in evidence.after.pods:
            yield Finding(
                Verdict.DIRTY,
                f"pod {owner.name} still exists: its kubelet starts what was killed again",
                f"kubectl get pods -A -o wide | grep {owner.name}  # then: kubectl delete pod",
            )


def _unit_findings(evidence: Evidence, ssh: str) -> Iterator[Finding]:
    """Only units that were hit are asked about, beside the vital ones: starting again, or running
    with a main process that wasn't there before."""
    before = evidence.before.last.processes if evidence.before.samples else {}
    for unit in evidence.after.units.values():
        if unit.name in VITAL_UNITS:
            continue
        again = unit.active == "active" and unit.main_pid > 0 and unit.main_pid not in before
        if unit.active == "activating" or again:
            yield Finding(
                Verdict.DIRTY,
                f"{unit.name} comes back ({unit.active}, {unit.sub}, Restart={unit.restart})",
                f"{ssh} systemctl stop {unit.name}",
            )


def _container_findings(evidence: Evidence, owner: Owner, ssh: str) -> Iterator[Finding]:
    """Restarting, or running with a first process that wasn't there before."""
    container = evidence.after.containers.get(owner.name)
    if container is None or container.restart not in _RESTARTING:
        return
    known = evidence.before.samples and container.pid in evidence.before.last.processes
    if container.state == "restarting" or (container.state == "running" and not known):
        tool, name = owner.runtime, container.name.lstrip("/")
        yield Finding(
            Verdict.DIRTY,
            f"container {name} comes back ({container.state}, restart policy {container.restart})",
            f"{ssh} '{tool} update --restart=no {name} && {tool} stop {name}'",
        )
