"""GPU daemons before and after: 0 MiB is worth nothing on a node whose fabric manager died. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.judge.finding import Finding
from gpufleet.model import Verdict
from gpufleet.observation import Observation, Process
from gpufleet.plan.names import GPU_DAEMONS
from gpufleet.plan.program import named, program_name

VITAL = ("nv-fabricmanager", "nvlsm", "nvidia-imex", "nvidia-persistenced")
"""Without these new CUDA programs fail or GPUs lose state; the others only stop measuring."""

VITAL_UNITS = (
    "nvidia-fabricmanager.service",
    "nvlsm.service",
    "nvidia-imex.service",
    "nvidia-persistenced.service",
)
_SHORT_LIVED = ("nvidia-smi", "nvidia-debugdump", "nvidia-bug-report.sh", "nvtop", "dcgmi")


def daemon_findings(before: Observation, after: Observation, ssh: str) -> Iterator[Finding]:
    """Vital daemons that aren't the same processes any more, or whose enabled unit isn't active."""
    for process in _lost(before, after):
        name = program_name(process)
        if name in VITAL:
            yield Finding(
                Verdict.BROKEN,
                f"{name} (pid {process.pid}) did not survive the run unchanged",
                f"{ssh} systemctl status {process.owner.name or name}",
            )
    if after.units_status not in {"0", "none"}:
        yield Finding(
            Verdict.UNKNOWN,
            f"systemctl did not tell the state of units (status {after.units_status})",
            f"{ssh} systemctl status",
        )
    elif after.units_status == "0" and (untold := set(VITAL_UNITS) - set(after.units)):
        reason = f"systemctl did not tell of {', '.join(sorted(untold))}"
        yield Finding(Verdict.UNKNOWN, reason, f"{ssh} systemctl status")
    for unit in after.units.values():
        if (
            unit.name in VITAL_UNITS
            and unit.enabled.startswith("enabled")
            and unit.active != "active"
        ):
            yield Finding(
                Verdict.BROKEN,
                f"{unit.name} is enabled and {unit.active} ({unit.sub})",
                f"{ssh} 'systemctl restart {unit.name} && nvidia-smi -q | grep -A2 Fabric'",
            )


def daemon_warnings(before: Observation, after: Observation) -> Iterator[str]:
    for process in _lost(before, after):
        if program_name(process) not in VITAL:
            yield f"{program_name(process)} (pid {process.pid}) ended or restarted during the run"


def _lost(before: Observation, after: Observation) -> list[Process]:
    """Daemons that any earlier sample showed and the newest doesn't, by pid and start time."""
    if not after.samples:
        return []
    seen = {
        process.identity: process
        for sample in (*before.samples, *after.samples)
        for process in sample.processes.values()
        if not process.dead
        and named(program_name(process), GPU_DAEMONS)
        and program_name(process) not in _SHORT_LIVED
    }
    return [process for _, process in sorted(seen.items()) if not after.last.has(process)]
