"""Shared memory left behind by killed workload: removed from a CLEAN node where that is asked for."""

from __future__ import annotations

import re
from dataclasses import replace

from gpufleet.errors import NodeError
from gpufleet.masking import printable
from gpufleet.model import Leftover, NodeReport, Verdict
from gpufleet.node import shm_script
from gpufleet.observation import unused
from gpufleet.observation.managed import one_line
from gpufleet.reset.state import State
from gpufleet.reset.wire import exchange

_NAME = re.compile(r"[A-Za-z0-9._+:@=-]+\Z")
"""A name that holds anything else is reported, and left."""

_LIMIT_S = 60.0
_WARNING = "/dev/shm: "
"""How judge/ begins its word on segments that nobody uses; it is said better here."""


def clean_segments(state: State, report: NodeReport) -> NodeReport:
    """The report with what became of each: only on a CLEAN node, where no workload lives that could
    have made one, and only those that were there before the reset began."""
    before, after = state.before, state.after
    if not state.spec.policy.clean_shm or after is None or before is None or not after.samples:
        return report
    old = {segment.name for segment in before.segments}
    used = after.last.segments
    left = [s for s in unused(after.segments, used) if s.name in old]
    if not left or not (state.run.dry_run or report.verdict is Verdict.CLEAN):
        return report
    fit = [segment for segment in left if _NAME.match(segment.name)]
    done = {s.name: "its name holds odd characters" for s in left if s not in fit}
    if not state.run.dry_run and fit:
        done |= _remove(state, [segment.name for segment in fit])
    leftovers = tuple(
        Leftover(printable(f"/dev/shm/{s.name}"), s.size, done.get(s.name, "")) for s in left
    )
    warnings = tuple(w for w in report.warnings if not w.startswith(_WARNING))
    if state.run.dry_run:
        return replace(report, leftovers=leftovers)
    kept = [one for one in leftovers if one.removed != "yes"]
    if kept:
        names = ", ".join(f"{one.path}: {one.removed}" for one in kept[:3])
        dots = ", …" if len(kept) > 3 else ""
        warnings = (*warnings, f"{_WARNING}{len(kept)} files not removed ({names}{dots})")
    return replace(
        report, leftovers=leftovers, warnings=warnings, elapsed_s=round(state.elapsed_s, 3)
    )


def _remove(state: State, names: list[str]) -> dict[str, str]:
    """By name: yes, or why it was left."""
    state.on_event("clean", f"{len(names)} files in /dev/shm")
    try:
        answer = exchange(state, shm_script(names, lock=state.lock), timeout_s=_LIMIT_S)
    except NodeError as error:
        return dict.fromkeys(names, f"not confirmed: {error.reason}")
    if "failed" in answer.sections or "locked" in answer.sections:
        said = one_line(answer.text("failed") or f"locked by {answer.text('locked')}")
        return dict.fromkeys(names, said)
    return {
        name: one_line(answer.text(f"shm.{number}")) or "not confirmed"
        for number, name in enumerate(names, start=1)
    }
