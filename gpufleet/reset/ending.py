"""How a node's reset ends: its report, the line in its syslog, and what is said without an answer."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.errors import NodeError, ScriptTimeout
from gpufleet.judge import Judgement
from gpufleet.model import NodeReport, Verdict
from gpufleet.node import close_script
from gpufleet.observation import parse_ports
from gpufleet.report import failed_report, node_report, syslog_line, with_ports
from gpufleet.reset.escalation import WORDS, with_rungs
from gpufleet.reset.owners import stop_lines, with_owners
from gpufleet.reset.state import State

_CLOSE_S = 10.0


def close(state: State, report: NodeReport) -> NodeReport:
    """Leave a line in the node's syslog, and learn which ports survivors keep. Both are extras: a
    node that won't take them has its verdict all the same."""
    told = replace(report, stopped=stop_lines(state))
    line = syslog_line(told, state.run.run_id, state.run.who)
    script = close_script(line=line, ports=bool(report.survivors))
    if state.transport is None or not (state.attempts or state.rungs or state.stopped_any):
        return report
    try:
        answer = state.transport.run(script, timeout_s=_CLOSE_S)
    except NodeError:
        return report
    return with_ports(report, parse_ports(answer.text("ports")))


def report_of(state: State, judgement: Judgement) -> NodeReport:
    report = with_rungs(state, with_owners(state, _report_of(state, judgement)))
    return replace(report, warnings=(*report.warnings, *state.notes))


def _report_of(state: State, judgement: Judgement) -> NodeReport:
    return node_report(
        state.spec,
        judgement,
        elapsed_s=state.elapsed_s,
        before=state.before,
        after=state.after,
        plan=state.plan,
        killed=state.killed.values(),
        attempts=state.attempts,
        acted=bool(state.attempts or state.idle_rounds),
    )


def ended_early(state: State, error: NodeError) -> NodeReport:
    """No finished answer. After the first act the node's state is unknown, whatever the reason."""
    if state.attempts == 0 and not state.opened and not state.stopped_any and not state.rungs:
        return _ended_untouched(state, error)
    reason = "interrupted" if state.run.interrupted() else error.reason
    if state.attempts == 0 and state.spec.hooks.before:
        reason = f"{reason} after `before` had begun, nothing was killed"
    if state.attempts == 0 and state.stopped_any:
        reason = f"{reason} after owners were being stopped"
    if state.rungs:
        reason = f"{reason} after a {WORDS[state.rungs[-1].rung]} ({state.rungs[-1].done})"
    judgement = Judgement(
        Verdict.UNKNOWN,
        f"{reason}: state not verified",
        f"gpufleet status --hosts {state.spec.name}",
    )
    if state.signalled and state.plan is not None:
        for decision in state.plan.kill:
            unsure = replace(decision, why=f"{decision.why}; end not confirmed")
            state.killed.setdefault(decision.process.identity, unsure.line(state.signalled))
        state.plan = replace(state.plan, kill=())
    return report_of(state, judgement)


def _ended_untouched(state: State, error: NodeError) -> NodeReport:
    if state.run.interrupted():
        nothing = Judgement(
            Verdict.NOT_STARTED,
            "interrupted before anything was changed",
            f"gpufleet reset --hosts {state.spec.name}",
        )
        return report_of(state, nothing)
    report = failed_report(state.spec, error, elapsed_s=state.elapsed_s)
    if isinstance(error, ScriptTimeout):
        asked = "its guard" if state.before else "the first look"
        return replace(report, reason=f"no answer to {asked}: {error.reason}")
    return report
