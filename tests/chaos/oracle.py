"""The oracle: what a round's reports claim against the truth about its node.

Every rule is one function; none of them uses an observation, plan or judgement of gpufleet's.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.model import RESET_VERDICTS, NodeReport, Verdict

from .fates import Fate
from .findings import Kind, Violation
from .proof import examine
from .runner import Outcome, limit_s
from .stage import Stage
from .truth import Snapshot

_UNTOUCHED = (Verdict.SKIPPED, Verdict.UNREACHABLE, Verdict.NOT_STARTED)


def report_of(stage: Stage, outcome: Outcome) -> NodeReport | None:
    return next((r for r in outcome.reports if r.host == stage.node.name), None)


def judge_outcome(stage: Stage, outcome: Outcome, before: Snapshot) -> Iterator[Violation]:
    """One run's reports."""
    yield from _one_report_each(outcome)
    took = outcome.ended_s - outcome.started_s
    if took > limit_s(stage.drawn):
        yield Violation(Kind.HUNG, f"{took:.1f} s, at most {limit_s(stage.drawn):.1f}")
    report, truth = report_of(stage, outcome), outcome.at_report
    if report is None or truth is None:
        yield Violation(Kind.NO_VERDICT, f"{stage.node.name} has no report")
        return
    if report.verdict is Verdict.CLEAN:
        proof = examine(stage, truth, outcome.started_s)
        if proof.wrong:
            yield Violation(Kind.WRONG_CLEAN, "; ".join(proof.wrong))
    if report.verdict in _UNTOUCHED and not stage.drawn.has("second run"):
        for text in _dead(stage, before, truth):
            yield Violation(Kind.UNTOUCHED, f"{report.verdict} ({report.reason}), but {text}")


def races_of(stage: Stage, outcome: Outcome) -> list[str]:
    """What came after a CLEAN's second sample and is there at its report."""
    report, truth = report_of(stage, outcome), outcome.at_report
    if report is None or truth is None or report.verdict is not Verdict.CLEAN:
        return []
    proof = examine(stage, truth, outcome.started_s)
    return [] if proof.wrong else proof.races


def _one_report_each(outcome: Outcome) -> Iterator[Violation]:
    hosts = [spec.name for spec in outcome.specs]
    if outcome.error:
        yield Violation(Kind.TRACEBACK, outcome.error)
        return
    if [report.host for report in outcome.reports] != hosts:
        got = [report.host for report in outcome.reports]
        yield Violation(Kind.NO_VERDICT, f"reports of {got} for {hosts}")
    if len({report.host for report in outcome.seen}) != len(outcome.seen):
        yield Violation(Kind.NO_VERDICT, "a node was reported twice")
    for report in outcome.reports:
        if report.verdict not in RESET_VERDICTS:
            yield Violation(Kind.NO_VERDICT, f"{report.host}: {report.verdict}")
        if report.verdict is not Verdict.CLEAN and not (report.reason and report.next_step):
            text = f"{report.host}: {report.verdict} {report.reason!r} next {report.next_step!r}"
            yield Violation(Kind.NO_VERDICT, text)
        if report.host.startswith("ghost") and report.verdict is Verdict.CLEAN:
            yield Violation(Kind.WRONG_CLEAN, f"{report.host} doesn't exist")
        if report.reason.startswith("internal error"):
            yield Violation(Kind.TRACEBACK, report.reason)


def judge_survivors(stage: Stage, before: Snapshot, after: Snapshot) -> Iterator[Violation]:
    """Whatever the verdict: what must live is the same process as before, and was never signalled."""
    for identity, role in stage.cast.items():
        if role.fate is Fate.LIVE and identity not in stage.removed:
            if not after.alive(*identity):
                yield Violation(Kind.KILLED, f"{role.label} pid {role.pid} {role.args!r}")
            elif role.early and role.label != "chaos" and (seen := _signals(stage, role.pid)):
                yield Violation(Kind.KILLED, f"{role.label} pid {role.pid} was sent {seen}")
    for process in before.processes:
        identity = process.pid, process.start_ticks
        foreign = identity not in stage.cast and identity not in stage.removed
        passing = process.comm.startswith((b"sshd", b"sleep", b"sh")) or process.state in "ZX"
        known = passing or process.args in stage.families
        if foreign and not known and not after.alive(*identity):
            yield Violation(Kind.KILLED, f"foreign pid {process.pid} {process.args!r}")


def judge_lock(stage: Stage, before: Snapshot, after: Snapshot) -> Iterator[Violation]:
    """Under somebody else's lock, held from before to the end, nothing may be killed."""
    for trouble in stage.drawn.troubles:
        if trouble.kind == "lock" and trouble.until_s is None and stage.active(trouble):
            for text in _dead(stage, before, after):
                yield Violation(Kind.UNTOUCHED, f"under a foreign lock: {text}")


def _dead(stage: Stage, before: Snapshot, now: Snapshot) -> Iterator[str]:
    """Workload that chaos left alone and that is gone."""
    for identity, role in stage.cast.items():
        mine = role.early and role.plain and role.fate is Fate.DIE
        died = before.alive(*identity) and not now.alive(*identity)
        if mine and died and identity not in stage.removed:
            yield f"{role.label} pid {role.pid} was killed"


def _signals(stage: Stage, pid: int) -> list[str]:
    path = stage.node.folder / "signals" / str(pid)
    return path.read_text().split() if path.exists() else []
