"""The way up, where killing can't help and the operator allowed more: a GPU reset, a reboot.

judge/rungs.py says which is due. Each is taken once at most, when it is this node's turn, and what
comes of it is judged by a new look, as everything is. See docs/runbook.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpufleet.errors import Unreachable
from gpufleet.judge import Judgement
from gpufleet.judge.rungs import NextRung, next_rung, units_to_stop, vital_daemons
from gpufleet.model import Escalation, NodeReport, Verdict
from gpufleet.observation.managed import one_line
from gpufleet.reset.gpureset import reset_gpus
from gpufleet.reset.reboot import reboot
from gpufleet.reset.state import State
from gpufleet.reset.wire import reconnect

STALE_S = 10.0
"""What was seen longer ago than this is looked at again before anything so grave is done on it."""

WORDS = {"gpu-reset": "GPU reset", "reboot": "reboot"}

Judged = Callable[[State], Judgement]


def rung_due(state: State, judgement: Judgement, *, planned: bool = False) -> NextRung:
    if state.after is None or state.plan is None or state.refused:
        return NextRung()
    done = frozenset(one.rung for one in state.rungs)
    policy = state.spec.policy
    return next_rung(state.after, state.plan, judgement, policy, done=done, planned=planned)


def plan_rungs(state: State, judgement: Judgement) -> None:
    """For a dry run: what would be done, as far as one look can tell."""
    due = rung_due(state, judgement, planned=True)
    if due.rung:
        no = due.why_not or _forbidden(state, due)
        _note(state, due, judgement, f"no: {no}" if no else "")


def climb(
    state: State,
    judgement: Judgement,
    *,
    again: Judged,
    look: Judged,
    act: Callable[[State, Judgement], Judgement],
) -> Judgement:
    """The judgement after the rungs that were due. `again`: what was seen, seen once more, by an act
    without anything new to kill. `look`: two samples, judged. `act`: kills, where that is due."""
    vital = vital_daemons(state.before) if state.before else frozenset()
    while (due := rung_due(state, judgement)).rung:
        if no := due.why_not or _forbidden(state, due) or _turn(state):
            _note(state, due, judgement, f"no: {no}")
            break
        state.allow(state.spec.policy.limits.ready_s)
        if state.run.clock() - state.seen_at > STALE_S:
            reconnect(state)
            judgement = again(state)
            if state.plan is not None and state.plan.kill:  # it came while the node waited
                judgement = act(state, judgement)
            continue
        judgement = _climbed(state, due, judgement, look, act)
    taken = [one for one in state.rungs if not one.done.startswith("no: ")]
    warnings = (f"{WORDS[one.rung]} ({one.done}): {one.why}" for one in taken)
    judgement = replace(judgement, warnings=(*warnings, *judgement.warnings))
    return _complete(state, judgement, vital)


def _complete(state: State, judgement: Judgement, vital: frozenset[str]) -> Judgement:
    """Clean, and with all daemons that ran before: those of a service that isn't enabled don't come
    back at a boot."""
    if judgement.verdict is not Verdict.CLEAN or not state.rungs or state.after is None:
        return judgement
    missing = sorted(vital - vital_daemons(state.after))
    if not missing:
        return judgement
    names = ", ".join(missing)
    return replace(
        judgement,
        verdict=Verdict.BROKEN,
        reason=f"clean, but {names} ran before the {_last(state)} and doesn't run now",
        next_step=f"{state.spec.access.ssh_command} systemctl status {' '.join(missing)}",
    )


def with_rungs(state: State, report: NodeReport) -> NodeReport:
    return replace(report, escalations=tuple(state.rungs)) if state.rungs else report


def _climbed(
    state: State,
    due: NextRung,
    judgement: Judgement,
    look: Judged,
    act: Callable[[State, Judgement], Judgement],
) -> Judgement:
    _note(state, due, judgement, "not confirmed")
    try:
        taken = reset_gpus(state) if due.rung == "gpu-reset" else reboot(state)
    except Unreachable as error:
        state.rungs[-1] = replace(state.rungs[-1], done=f"no: {one_line(error.reason)}")
        raise
    state.rungs[-1] = replace(state.rungs[-1], done=one_line(taken.done))
    state.begin_anew()
    if taken.end is not None:
        after = taken.end
    elif state.run.interrupted():
        reason = f"interrupted after the {_last(state)}: state not verified"
        after = Judgement(Verdict.UNKNOWN, reason, f"gpufleet status --hosts {state.spec.name}")
    else:
        after = act(state, _settled(state, look, patient=taken.worked))
    if taken.done != "yes" and after.verdict is not Verdict.CLEAN and taken.end is None:
        after = replace(after, reason=f"{_last(state)}: {taken.done}; {after.reason}")
    return after


def _settled(state: State, look: Judged, *, patient: bool) -> Judgement:
    """A look once the node has come to rest: a fabric trains and services start for a while. Not waited
    for where the driver says that it isn't over, and where there is something to kill."""
    limits = state.spec.policy.limits
    until = state.run.clock() + limits.ready_s
    while True:
        state.allow(limits.ready_s)
        judgement = look(state)
        over = judgement.verdict in {Verdict.CLEAN, Verdict.SKIPPED}
        killable = state.plan is not None and bool(state.plan.kill)
        stuck = bool(judgement.cures) and judgement.cures <= {"gpu-reset", "reboot"}
        if over or killable or stuck or not patient or state.run.clock() >= until:
            return judgement
        if state.run.interrupted():
            return judgement
        state.on_event("settle", judgement.reason[:100])
        state.run.sleep(limits.pause_s)


def _note(state: State, due: NextRung, judgement: Judgement, done: str) -> None:
    assert state.after is not None
    units = units_to_stop(state.after)
    steps: tuple[str, ...] = ("systemctl reboot",)
    if due.rung == "gpu-reset":
        stops = [f"systemctl stop {unit}" for unit in units]
        starts = [f"systemctl start {unit}" for unit in reversed(units)]
        steps = (*stops, "nvidia-smi --gpu-reset", *starts)
    state.rungs.append(Escalation(due.rung, one_line(judgement.reason), one_line(done), steps))


def _forbidden(state: State, due: NextRung) -> str:
    """Why not now, whatever the node shows."""
    run, host = state.run, state.spec.name
    if run.interrupted():
        return "interrupted"
    if run.agreed is not None and host not in run.agreed:
        return "nobody was asked about it: the first look showed nothing that wants it"
    boot_id = state.after.boot_id if state.after else ""
    here = {one.boot_id for one in run.here}
    if due.rung == "reboot" and here and boot_id in {"", *here}:
        return "gpufleet itself runs on this machine"
    return ""


def _turn(state: State) -> str:
    """Waits until the rung may be taken: one node at a time, or as many as a batch has. Or why not."""
    began = state.run.clock()
    state.on_event("turn", "")
    try:
        return state.run.turn(state.spec.name)
    finally:
        state.hooks_s += state.run.clock() - began


def _last(state: State) -> str:
    return WORDS[state.rungs[-1].rung]
