"""Owners of workload: asked, stopped by their own tools, started again. See docs/managed.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpufleet.errors import ConnectionLost, NodeError, ScriptTimeout, Unreachable
from gpufleet.judge import Judgement
from gpufleet.model import NodeReport, Stopped, Verdict
from gpufleet.node import act_name, owners_script, start_script, stop_script
from gpufleet.observation import Observation
from gpufleet.observation.managed import (
    Managed,
    Outcome,
    Started,
    one_line,
    parse_managed,
    parse_outcomes,
    parse_started,
)
from gpufleet.plan import Plan
from gpufleet.plan.managed import described, make_stops, owners_of
from gpufleet.policy import Policy
from gpufleet.report import described_report
from gpufleet.reset.state import NOT_UP, State
from gpufleet.reset.wire import ask, exchange, reconnect
from gpufleet.transport import Answer, Script

_ASK_S = 40.0


def ask_owners(
    plan: Plan, observation: Observation, policy: Policy, run: Callable[[Script], Answer]
) -> Managed | None:
    """What the owners of what would be killed say; None where nobody has to be asked. That nobody
    answered is no failure of a look."""
    owners, supervisor = owners_of(plan, observation)
    if not owners and not supervisor:
        return Managed()
    try:
        return parse_managed(run(owners_script(policy, owners, supervisor=supervisor)))
    except (ScriptTimeout, ConnectionLost, Unreachable):
        return None


def with_owners(state: State, report: NodeReport) -> NodeReport:
    """The report with what owners say of themselves, asked for or told by the looks."""
    after, asked = state.after, state.managed or Managed()
    if after is None:
        return report
    managed = replace(
        asked,
        units={**after.units, **asked.units},
        user_units={**after.user_units, **asked.user_units},
        containers={**after.containers, **asked.containers},
    )
    decisions = [*state.decided.values(), *(state.plan.kill if state.plan else ())]
    observation = state.before if state.before and state.before.samples else after
    if not observation.samples:
        return report
    return described_report(report, {d: described(d, managed, observation) for d in decisions})


def plan_stops(state: State) -> None:
    """Learns who would be stopped. Asks the node, once more if need be. What was stopped already (before
    a rung) stays known: it is to run again as well."""
    observation, plan, policy = state.after, state.plan, state.spec.policy
    if observation is None or plan is None or not plan.kill:
        return
    state.managed = ask_owners(
        plan, observation, policy, lambda script: ask(state, script, timeout_s=_ASK_S)
    )
    if state.managed is None:
        reconnect(state)  # whatever still runs on the old connection
    if policy.stop == "owner":
        managed = state.managed or Managed()
        stops = make_stops(plan, observation, managed, policy)
        again = {stop.key for stop in stops if not stop.why_not}
        earlier = [stop for stop in state.to_restore if stop.key not in again]
        known = {stop.key for stop in earlier}
        state.stops = [*earlier, *(stop for stop in stops if stop.key not in known)]
        state.stopped = {key: said for key, said in state.stopped.items() if key in known}


def stop_owners(state: State) -> Judgement | None:
    """None where the reset may go on: all that is to be stopped was tried. Its time isn't the node's."""
    earlier = dict(state.stopped)
    due = [stop for stop in state.stops if not stop.why_not and stop.key not in earlier]
    state.stopped |= {stop.key: stop.why_not for stop in state.stops if stop.why_not}
    if not due:
        return None
    state.on_event("stop", ", ".join(stop.owner for stop in due))
    state.stopped |= {stop.key: "not confirmed" for stop in due}
    policy = state.spec.policy
    script = stop_script(
        policy,
        [(stop.kind, stop.target) for stop in due],
        lock=state.lock,
        run=state.run.run_id,
        name=act_name(state.run.run_id, "stop") if state.run.repeatable else "",
    )
    answer = _timed(state, script)
    if "again" in answer.sections:
        state.stopped = earlier
        state.stops = [stop for stop in state.stops if stop.key in earlier]
        return Judgement(
            Verdict.UNKNOWN,
            "another worker of this run stopped owners here, and was lost: nothing more was done",
            f"gpufleet restore --hosts {state.spec.name}",
        )
    if "failed" in answer.sections or "locked" in answer.sections:
        state.stopped = earlier
        state.stops = [stop for stop in state.stops if stop.key in earlier]
        return _refused(state, answer)
    outcomes = parse_outcomes(answer)
    for number, stop in enumerate(due, start=1):
        state.stopped[stop.key] = _outcome(outcomes.get(number), policy)
    return None


def start_owners(state: State, report: NodeReport) -> NodeReport:
    """The report after what was stopped was started again, where that is asked for and the node CLEAN;
    else with how to do it."""
    report = replace(report, stopped=stop_lines(state))
    if all(stop.kind == "job" for stop in state.to_restore):  # its user submits it again
        return report
    host = state.spec.name
    if state.run.dry_run:
        return report
    if report.verdict is not Verdict.CLEAN:
        step = f"{report.next_step}  # then, to start again what was stopped: {_restore(host)}"
        return replace(report, next_step=step)
    if not state.spec.policy.restart:
        return report
    state.on_event("start", "")
    try:
        answer = _timed(state, start_script(state.spec.policy, lock=state.lock))
    except NodeError as error:
        reason = f"clean, but what was stopped may not have been started: {error.reason}"
        return _unwell(report, Verdict.UNKNOWN, reason, host)
    if "failed" in answer.sections or "locked" in answer.sections:
        said = one_line(answer.text("failed") or answer.text("locked"))
        reason = f"clean, but what was stopped could not be started: {said}"
        return _unwell(report, Verdict.BROKEN, reason, host)
    started = parse_started(answer)
    states = {(one.kind, one.target): one for one in started}
    for stop in state.stops:
        if one := states.get(stop.key):
            state.restored[stop.key] = restored(one)
    report = replace(report, stopped=stop_lines(state), elapsed_s=round(state.elapsed_s, 3))
    return with_failures(report, started, host, "clean, but ")


def with_failures(
    report: NodeReport, started: Iterable[Started], host: str, prefix: str = ""
) -> NodeReport:
    """What was started and isn't up makes the node BROKEN: an exit status has to say so."""
    down = [one for one in started if not one.runs]
    if not down:
        return report
    names = ", ".join(f"{one.name} ({one.state}: {one.words})" for one in down)
    reason = f"{prefix}not up again: {names}"
    return _unwell(report, Verdict.BROKEN, reason, host)


def restored(one: Started) -> str:
    if one.state == "up":
        return "yes"
    return "starting" if one.state == "starting" else f"no: {one.state}, {one.words}"


def _unwell(report: NodeReport, verdict: Verdict, reason: str, host: str) -> NodeReport:
    return replace(report, verdict=verdict, reason=reason, next_step=_restore(host))


def _restore(host: str) -> str:
    return f"gpufleet restore --hosts {host}"


def stop_lines(state: State) -> tuple[Stopped, ...]:
    stops = (
        Stopped(
            one_line(stop.owner),
            one_line(stop.action),
            stop.why_not if state.run.dry_run else state.stopped.get(stop.key, stop.why_not),
            state.restored.get(stop.key, ""),
        )
        for stop in state.stops
    )
    return (*stops, *state.daemons)


def _outcome(outcome: Outcome | None, policy: Policy) -> str:
    if outcome is None:
        return "not confirmed"
    if outcome.status == "0":
        return "yes"
    if outcome.status == "absent":
        return NOT_UP
    if outcome.status == "late":
        return "no: the others took too long"
    if outcome.status in {"124", "137"}:
        return f"not confirmed: no answer in {policy.limits.owner_s:g} s"
    return f"not confirmed: status {outcome.status}: {outcome.text}"


def _refused(state: State, answer: Answer) -> Judgement:
    ssh = state.spec.access.ssh_command
    if "locked" in answer.sections:
        holder = one_line(answer.text("locked")) or "it didn't say who it is"
        step = f"{ssh} cat /run/gpufleet/lock  # wait for it"
        return Judgement(Verdict.SKIPPED, f"another reset holds this node: {holder}", step)
    reason = f"{one_line(answer.text('failed'))}: nothing was stopped or killed"
    return Judgement(
        Verdict.UNKNOWN, reason, f"{ssh} 'ls -ld /var/lib/gpufleet-node; df -h /var/lib'"
    )


def _timed(state: State, script: Script) -> Answer:
    """What owners take isn't the node's own time. A start whose connection went is asked for again:
    what is up already, stays so."""
    began = state.run.clock()
    limit_s = 4 * state.spec.policy.limits.owner_s
    try:
        return exchange(state, script, timeout_s=limit_s)
    except ConnectionLost as lost:
        if not script.shielded or state.run.interrupted():
            raise
        state.on_event("retry", lost.reason)
        reconnect(state)
        return exchange(state, script, timeout_s=limit_s)
    finally:
        state.hooks_s += state.run.clock() - began
