"""One node: observe → plan → act → verify. Holds the loop and its limits; decides nothing itself.

What may be killed is plan.py's, what it all means is judge.py's. tenacity says when to connect, look
and act again. Nothing here knows SSH: a `Connect` is handed in.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import tenacity

from gpufleet.errors import ConnectionLost, NodeError, Unreachable
from gpufleet.judge import Judgement, judge_dry_run
from gpufleet.model import Moment, NodeReport, Verdict
from gpufleet.node import look_script
from gpufleet.observation import Observation, parse_observation
from gpufleet.plan import NO_PLAN
from gpufleet.policy import NodeSpec
from gpufleet.reset.ending import close, ended_early, report_of
from gpufleet.reset.escalation import climb, plan_rungs, rung_due
from gpufleet.reset.hooks import ask_guard, run_after, run_before, told
from gpufleet.reset.owners import plan_stops, start_owners, stop_owners
from gpufleet.reset.restoring import restore_node
from gpufleet.reset.rounds import act, judge, learn, look_anew, strangers, worth_acting
from gpufleet.reset.segments import clean_segments
from gpufleet.reset.state import Crowd, Here, OnEvent, Resetting, State, crowd_of
from gpufleet.reset.wire import ask, why
from gpufleet.transport import Connect

__all__ = ["Crowd", "Here", "OnEvent", "Resetting", "crowd_of", "reset_node", "restore_node"]


def reset_node(
    spec: NodeSpec,
    connect: Connect,
    run: Resetting | None = None,
    on_event: OnEvent = lambda phase, detail: None,
    connect_anyway: Connect | None = None,
) -> NodeReport:
    """Bring one node to a proven clean slate and report; never raises a `NodeError`.

    `connect_anyway`: a connection that an interrupt of the run doesn't cut, for `after`.
    """
    run = run or Resetting()
    started = run.clock()
    moments: list[Moment] = []

    def noted(phase: str, detail: str) -> None:
        """A phase that goes on (a heartbeat each second) is one moment, with its first word."""
        last = moments[-1] if moments else None
        new = last is None or phase != last.phase or phase == "retry"
        step = phase == "gpu-reset" and last is not None and detail != last.detail
        if (new or step) and phase != "memory":
            moments.append(Moment(round(run.clock() - started, 3), phase, detail))
        on_event(phase, detail)

    state = State(spec, connect, run, noted, started, connect_anyway or connect)
    try:
        report = run_after(state, start_owners(state, clean_segments(state, _verdict(state))))
    finally:
        if state.transport is not None:
            state.transport.close()
    noted("done", report.verdict.value)
    return replace(report, timeline=tuple(moments))


def _verdict(state: State) -> NodeReport:
    """The node's report but for `after`, which is due even where a bug of ours ends the rest."""
    try:
        return _reset(state)
    except NodeError as error:
        return ended_early(state, error)
    except BaseException:
        with contextlib.suppress(Exception):
            run_after(state, ended_early(state, ConnectionLost("internal error")))
        raise


def _reset(state: State) -> NodeReport:
    policy = state.spec.policy
    script = look_script(policy, two_samples=True, budget_s=state.left_s)
    observation = parse_observation(ask(state, script, timeout_s=state.left_s))
    learn(state, observation)
    state.before = state.after
    if observation.samples and observation.uid != 0:
        raise Unreachable.not_root(observation.uid)
    judgement = judge(state, observation)
    if stop := _forbidden(state, judgement):
        if state.run.dry_run and state.plan is not None:
            state.plan = replace(state.plan, kill=())  # nothing would be killed
        return report_of(state, stop)
    if state.run.dry_run:
        plan_stops(state)
        plan_rungs(state, judgement)
        return report_of(state, _dry_run(state, observation))
    if _worth_preparing(state, judgement):
        judgement = _prepared(state)
    judgement = _acted(state, judgement)
    judgement = climb(
        state,
        judgement,
        again=_seen_again,
        look=lambda state: judge(state, look_anew(state)),
        act=_acted_anew,
    )
    return close(state, report_of(state, judgement))


def _acted(state: State, judgement: Judgement) -> Judgement:
    """Have owners stop it, kill what is left, until nothing more is to be done."""
    if state.spec.policy.stop == "owner" and worth_acting(state, judgement):
        judgement = _without_owners(state, judgement)
    if not worth_acting(state, judgement):
        return judgement
    rounds = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda result: worth_acting(state, result)),
        stop=tenacity.stop_never,  # _worth_acting counts attempts and looks at the deadline
        wait=tenacity.wait_random(0, 0.1),
        sleep=state.run.sleep,
        before_sleep=lambda call: state.on_event("retry", why(call)),
    )
    return rounds(act, state)


def _seen_again(state: State) -> Judgement:
    """What was seen a while ago, seen once more, and the guard asked once more."""
    judgement = act(state)
    if not state.refused and (stop := ask_guard(state, judgement)):
        state.refused = True
        return stop
    return judgement


def _acted_anew(state: State, judgement: Judgement) -> Judgement:
    """The same after a rung: a scheduler may have given the node to somebody meanwhile."""
    killing = state.plan is not None and bool(state.plan.kill)
    if killing and worth_acting(state, judgement) and (stop := ask_guard(state, judgement)):
        state.refused = True
        return stop
    return _acted(state, judgement)


def _forbidden(state: State, judgement: Judgement) -> Judgement | None:
    """Why this node isn't touched although it could be: its guard, or what nobody was asked about.

    Not asked where nothing is done anyway: past a job or a lock, or where the look wasn't one.
    """
    if state.refused or judgement.verdict is Verdict.SKIPPED:
        return None
    return ask_guard(state, judgement) or _unseen(state)


def _unseen(state: State) -> Judgement | None:
    """A person said yes to what was shown; whoever came since isn't killed without a word."""
    if not (who := strangers(state)):
        return None
    return Judgement(
        Verdict.SKIPPED,
        f"since you were asked, processes of {who} have come: nothing was touched",
        f"gpufleet reset --hosts {state.spec.name}",
    )


def _dry_run(state: State, observation: Observation) -> Judgement:
    plan, spec = state.plan or NO_PLAN, state.spec
    ssh = spec.access.ssh_command
    judgement = judge_dry_run(observation, plan, spec.policy, ssh, host=spec.name)
    if _worth_preparing(state, judgement):
        return replace(judgement, warnings=(*judgement.warnings, *told(state)))
    return judgement


def _worth_preparing(state: State, judgement: Judgement) -> bool:
    """Are `before` and `after` due: will something be killed, or is it dirty for what `before` may
    end, as a service between two starts? A clean node is left alone, and so is one past help."""
    hooks, plan, after = state.spec.hooks, state.plan, state.after
    if not (hooks.before or hooks.after) or state.run.interrupted():
        return False
    if plan is None or after is None or not plan.may_act:
        return False
    due = rung_due(state, judgement, planned=True)
    if due.rung and not due.why_not:
        return True
    if after.last.memory.hung:
        return False
    return judgement.verdict is Verdict.DIRTY or worth_acting(state, judgement)


def _prepared(state: State) -> Judgement:
    """Run `before`, then look again: the first look's plan is older than what `before` did."""
    if refused := run_before(state):
        state.refused = True
        return refused
    if state.spec.hooks.before:
        script = look_script(state.spec.policy, two_samples=True, budget_s=state.left_s)
        state.after = None  # nothing was killed yet, so nothing can have come back
        observation = parse_observation(ask(state, script, timeout_s=state.left_s))
        learn(state, observation)
        if unseen := None if state.refused else _unseen(state):
            state.refused = True
            return unseen
    else:
        assert state.after is not None
        observation = state.after
    return judge(state, observation)


def _without_owners(state: State, judgement: Judgement) -> Judgement:
    """Have the owners stop the workload, then look again: what is left is killed as ever."""
    plan_stops(state)
    if refused := stop_owners(state):
        state.refused = True
        return refused
    return judge(state, look_anew(state)) if state.stopped_any else judgement
