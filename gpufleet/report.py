"""Observations, plan and judgement of a node → its report. No decision is made here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpufleet.errors import NodeError, Unreachable
from gpufleet.judge import Judgement
from gpufleet.model import Gpu, NodeReport, ProcessLine, Verdict
from gpufleet.observation import Observation
from gpufleet.plan import Decision, Plan
from gpufleet.policy import NodeSpec


def node_report(
    spec: NodeSpec,
    judgement: Judgement,
    *,
    elapsed_s: float,
    before: Observation | None = None,
    after: Observation | None = None,
    plan: Plan | None = None,
    killed: Iterable[ProcessLine] = (),
    attempts: int = 0,
    acted: bool = False,
) -> NodeReport:
    """`plan` is that of `after`. What it would kill are survivors if an act went before (`acted`)."""
    charged = {**_charged(before), **_charged(after)}

    def told(lines: Iterable[ProcessLine]) -> tuple[ProcessLine, ...]:
        return tuple(replace(line, memory_mib=charged.get(line.pid)) for line in lines)

    candidates = told(decision.line() for decision in plan.kill) if plan else ()
    return NodeReport(
        host=spec.name,
        address=spec.access.address,
        verdict=judgement.verdict,
        reason=judgement.reason,
        next_step=judgement.next_step,
        attempts=attempts,
        elapsed_s=round(elapsed_s, 3),
        gpus=_gpus(before, after),
        warnings=judgement.warnings,
        killed=told(killed),
        spared=told(decision.line() for decision in plan.spare) if plan else (),
        survivors=candidates if acted else (),
        planned=() if acted else candidates,
    )


def described_report(report: NodeReport, said: Mapping[Decision, tuple[str, str]]) -> NodeReport:
    """The report with what the owner of each process is to people, and its restart policy."""
    by_pid = {
        (decision.process.pid, decision.line().command): words for decision, words in said.items()
    }

    def told(lines: Iterable[ProcessLine]) -> tuple[ProcessLine, ...]:
        found = ((line, by_pid.get((line.pid, line.command), ("", ""))) for line in lines)
        return tuple(replace(line, managed=m, restart=r) for line, (m, r) in found)

    return replace(
        report,
        killed=told(report.killed),
        survivors=told(report.survivors),
        planned=told(report.planned),
    )


def failed_report(spec: NodeSpec, error: NodeError, *, elapsed_s: float) -> NodeReport:
    """The report of a node that no observation came from."""
    unreachable = isinstance(error, Unreachable)
    return NodeReport(
        host=spec.name,
        address=spec.access.address,
        verdict=Verdict.UNREACHABLE if unreachable else Verdict.UNKNOWN,
        reason=error.reason,
        next_step=error.next_step or f"{spec.access.ssh_command} true",
        stage=error.stage if isinstance(error, Unreachable) else "",
        elapsed_s=round(elapsed_s, 3),
    )


def with_ports(report: NodeReport, ports: Mapping[int, Sequence[int]]) -> NodeReport:
    """The report with a warning for each survivor that keeps a port: the next server can't bind it."""
    told = tuple(
        f"pid {line.pid} still listens on port {', '.join(map(str, ports[line.pid]))}"
        for line in report.survivors
        if line.pid in ports
    )
    return replace(report, warnings=(*report.warnings, *told))


def syslog_line(report: NodeReport, run_id: str, who: str) -> str:
    """One line, at most 900 characters: run, who, verdict, what was killed and stopped; secrets are
    masked."""
    killed = ", ".join(f"{line.pid} {line.user} {line.command[:60]}" for line in report.killed)
    text = f"run {run_id} by {who}: {report.verdict}, killed {len(report.killed)}"
    stopped = ", ".join(stop.owner for stop in report.stopped if not stop.stopped.startswith("no:"))
    text += f", stopped {stopped}" if stopped else ""
    reason = f"; {report.reason}" if report.reason else ""
    return f"{text}{reason}{f': {killed}' if killed else ''}"[:900]


def _charged(observation: Observation | None) -> dict[int, int]:
    """MiB by pid over all GPUs, as the driver charges them; a pid that it gives no number for is
    left out."""
    charged: dict[int, int] = {}
    for app in (observation.apps if observation else None) or ():
        if app.used_mib is not None:
            charged[app.pid] = charged.get(app.pid, 0) + app.used_mib
    return charged


def _mib(text: str) -> int | None:
    """`143771 MiB` → 143771."""
    number, _, unit = text.partition(" ")
    return int(number) if unit == "MiB" and number.isascii() and number.isdigit() else None


def _gpus(before: Observation | None, after: Observation | None) -> tuple[Gpu, ...]:
    """The newest rows, ordered by index, with what each read before."""
    if after is None or not after.samples:
        return ()
    earlier = before.last.memory.used_mib() if before and before.samples else {}
    return tuple(
        Gpu(
            index=row.index,
            uuid=after.health.values.get(row.index, {}).get("uuid", ""),
            memory_before_mib=earlier.get(row.index),
            memory_used_mib=row.used_mib,
            raw=row.raw if row.used_mib is None else "",
            memory_total_mib=_mib(after.health.values.get(row.index, {}).get("memory.total", "")),
        )
        for row in sorted(after.last.memory.rows, key=lambda row: row.index)
    )
