"""Memory above the tolerance: whose is it, and can killing or waiting still help? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpufleet.judge.evidence import Evidence
from gpufleet.judge.finding import Cure, Finding
from gpufleet.judge.gpus import over
from gpufleet.judge.processes import stop_command
from gpufleet.model import Verdict
from gpufleet.observation import Observation, unused
from gpufleet.plan import Decision
from gpufleet.policy import Policy

IDLE_MEMORY_MIB = 64
"""Up to this, memory that nobody holds is a driver's own idle reading (4 MiB on H200 and B200, 39
with MIG) and a question of `tolerance`; above it, memory was leaked and only a reset brings it back."""


def memory_left(evidence: Evidence, policy: Policy, ssh: str) -> Iterator[Finding]:
    """Memory above the tolerance: whose is it, and can killing or waiting still help?"""
    observation = evidence.after
    rows = over(observation.last.memory, policy)
    if not rows:
        return
    amounts = amounts_over(observation, policy)
    act = observation.act
    if evidence.plan.kill or (act and act.stop in {"dying", "unkillable"}):
        stuck = act is not None and act.stop in {"dying", "unkillable"}
        cure: Cure = "reboot" if stuck else "kill"
        yield Finding(Verdict.DIRTY, amounts, f"{ssh} nvidia-smi", again=True, cure=cure)
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
            cure="gpu-reset",
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
    return stop_command(decision.process, ssh)


def _namespace(observation: Observation) -> str:
    """Said where memory has no owner: from inside a container one can't see who holds it."""
    if observation.on_host:
        return ""
    return f" (seen from process namespace {observation.pid_namespace}: a container?)"


def amounts_over(observation: Observation, policy: Policy) -> str:
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


def tolerated(observation: Observation, policy: Policy) -> Iterator[str]:
    used = [row.used_mib or 0 for row in observation.last.memory.rows]
    if used and max(used) > 0:
        yield f"up to {max(used)} MiB count as free (tolerance: {policy.tolerance_mib} MiB)"


def segment_warnings(observation: Observation) -> Iterator[str]:
    """Shared memory that no process uses any more: it fills /dev/shm until a next start fails."""
    left = unused(observation.segments, observation.last.segments)
    if left:
        mib = sum(segment.size for segment in left) / (1 << 20)
        names = ", ".join(segment.name for segment in left[:3]) + (", …" if len(left) > 3 else "")
        yield f"/dev/shm: {len(left)} files that nobody uses, {mib:.0f} MiB ({names})"
