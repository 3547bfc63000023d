"""One node: observe → plan → act → verify. Holds the loop and its limits; decides nothing itself.

What may be killed is plan.py's, what it all means is judge.py's. tenacity says when to connect, look
and act again. Nothing here knows SSH: a `Connect` is handed in.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import tenacity

from gpufleet.errors import ConnectionLost, NodeError, Unreachable
from gpufleet.judge import Evidence, Judgement, judge_dry_run, judge_reset
from gpufleet.model import Moment, NodeReport, Verdict
from gpufleet.node import act_name, act_script, look_script
from gpufleet.observation import Observation, parse_observation, reading_words
from gpufleet.plan import NO_PLAN, make_plan
from gpufleet.policy import NodeSpec
from gpufleet.reset.ending import close, ended_early, report_of
from gpufleet.reset.escalation import climb, plan_rungs, rung_due
from gpufleet.reset.hooks import ask_guard, run_after, run_before, told
from gpufleet.reset.owners import plan_stops, start_owners, stop_owners
from gpufleet.reset.repeats import note_again, patiently
from gpufleet.reset.restoring import restore_node
from gpufleet.reset.segments import clean_segments
from gpufleet.reset.state import Crowd, Here, OnEvent, Resetting, State, crowd_of
from gpufleet.reset.wire import ask, observe, reconnect, why
from gpufleet.transport import Connect

__all__ = ["Crowd", "Here", "OnEvent", "Resetting", "crowd_of", "reset_node", "restore_node"]

IDLE_ROUNDS = 3
"""So many acts without anything to kill: waiting longer is the node's matter, not one more look's."""


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
    _learn(state, observation)
    state.before = state.after
    if observation.samples and observation.uid != 0:
        raise Unreachable.not_root(observation.uid)
    judgement = _judge(state, observation)
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
        look=lambda state: _judge(state, _looked_again(state)),
        act=_acted_anew,
    )
    return close(state, report_of(state, judgement))


def _acted(state: State, judgement: Judgement) -> Judgement:
    """Have owners stop it, kill what is left, until nothing more is to be done."""
    if state.spec.policy.stop == "owner" and _worth_acting(state, judgement):
        judgement = _without_owners(state, judgement)
    if not _worth_acting(state, judgement):
        return judgement
    rounds = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda result: _worth_acting(state, result)),
        stop=tenacity.stop_never,  # _worth_acting counts attempts and looks at the deadline
        wait=tenacity.wait_random(0, 0.1),
        sleep=state.run.sleep,
        before_sleep=lambda call: state.on_event("retry", why(call)),
    )
    return rounds(_act, state)


def _seen_again(state: State) -> Judgement:
    """What was seen a while ago, seen once more, and the guard asked once more."""
    judgement = _act(state)
    if not state.refused and (stop := ask_guard(state, judgement)):
        state.refused = True
        return stop
    return judgement


def _acted_anew(state: State, judgement: Judgement) -> Judgement:
    """The same after a rung: a scheduler may have given the node to somebody meanwhile."""
    killing = state.plan is not None and bool(state.plan.kill)
    if killing and _worth_acting(state, judgement) and (stop := ask_guard(state, judgement)):
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
    if not (who := _strangers(state)):
        return None
    return Judgement(
        Verdict.SKIPPED,
        f"since you were asked, processes of {who} have come: nothing was touched",
        f"gpufleet reset --hosts {state.spec.name}",
    )


def _strangers(state: State) -> str:
    """Whose processes would be killed and were not shown: `alice, bob in slurm job 7`, or ""."""
    shown = state.run.shown
    if shown is None or state.plan is None:
        return ""
    lines = tuple(decision.line() for decision in state.plan.kill)
    crowd = crowd_of(lines) - shown.get(state.spec.name, frozenset())
    return ", ".join(f"{user}{f' in {job}' if job else ''}" for user, job in sorted(crowd))


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
    return judgement.verdict is Verdict.DIRTY or _worth_acting(state, judgement)


def _prepared(state: State) -> Judgement:
    """Run `before`, then look again: the first look's plan is older than what `before` did."""
    if refused := run_before(state):
        state.refused = True
        return refused
    if state.spec.hooks.before:
        script = look_script(state.spec.policy, two_samples=True, budget_s=state.left_s)
        state.after = None  # nothing was killed yet, so nothing can have come back
        observation = parse_observation(ask(state, script, timeout_s=state.left_s))
        _learn(state, observation)
        if unseen := None if state.refused else _unseen(state):
            state.refused = True
            return unseen
    else:
        assert state.after is not None
        observation = state.after
    return _judge(state, observation)


def _looked_again(state: State) -> Observation:
    """Another look before the first kill: nothing can have come back yet."""
    script = look_script(
        state.spec.policy, two_samples=True, budget_s=state.left_s, owners=state.owners_hit
    )
    state.on_event("look", "")
    state.after = None
    observation = parse_observation(ask(state, script, timeout_s=state.left_s))
    _learn(state, observation)
    if state.rungs:
        state.daemons_before = observation
    return observation


def _without_owners(state: State, judgement: Judgement) -> Judgement:
    """Have the owners stop the workload, then look again: what is left is killed as ever."""
    plan_stops(state)
    if refused := stop_owners(state):
        state.refused = True
        return refused
    return _judge(state, _looked_again(state)) if state.stopped_any else judgement


def _worth_acting(state: State, judgement: Judgement) -> bool:
    """Could another act change this judgement, and is it allowed?

    Acts whatever the GPUs say, but not blind, not past a scheduler's job, not where nvidia-smi hangs
    (each further one would hang too), not after the limits, and not against an owner that has
    brought its workload back twice.
    """
    plan, after, policy = state.plan, state.after, state.spec.policy
    if plan is None or after is None or not after.samples or not plan.may_act:
        return False
    if judgement.verdict is Verdict.CLEAN or after.last.memory.hung:
        return False
    if state.refused or state.repeated or state.left_s <= 0 or state.run.interrupted():
        return False
    if _strangers(state):
        return False
    if plan.kill:
        tries = state.attempts - state.attempts_earlier
        return tries < policy.attempts and max(state.comebacks.values(), default=0) < 2
    return judgement.again and state.idle_rounds < IDLE_ROUNDS


def _act(state: State) -> Judgement:
    """One round on the node: signal, watch, look again; then judge."""
    assert state.plan is not None
    policy, plan = state.spec.policy, state.plan
    if plan.kill:
        state.attempts += 1
        count = "1 process" if len(plan.kill) == 1 else f"{len(plan.kill)} processes"
        state.on_event("kill", f"attempt {state.attempts}: {count}")
    else:
        state.idle_rounds += 1
        state.on_event("free", "waiting for memory")
    state.decided.update({decision.process.identity: decision for decision in plan.kill})
    name = act_name(state.run.run_id, str(state.attempts)) if plan.kill else ""
    script = act_script(
        policy,
        name=name,
        keep=state.run.repeatable,
        kill=[decision.process.identity for decision in plan.kill],
        lock=state.lock,
        budget_s=state.left_s,
        dying_budget_s=state.dying_left_s,
        owners=state.owners_hit,
    )
    limit_s = state.dying_left_s + policy.grace_s + policy.settle_s + policy.limits.smi_s
    try:
        observation = patiently(state, lambda: observe(state, script, timeout_s=limit_s))
    except ConnectionLost as lost:
        observation = _look_again(state, lost)
    if (observation.locked or "").startswith(f"run {state.run.run_id} "):
        raise ConnectionLost("the script of a connection that was lost still holds the node's lock")
    note_again(state, observation)
    _learn(state, observation)
    judgement = _judge(state, observation)
    if not state.refused and (who := _strangers(state)):
        left = f"since you were asked, processes of {who} have come, which were left alone"
        return replace(judgement, reason=f"{left}; {judgement.reason}")
    return judgement


def _learn(state: State, observation: Observation) -> None:
    """Take in what an observation says of earlier kills and of what came back since."""
    state.refused = not observation.samples
    if state.refused:
        return
    state.seen_at = state.run.clock()
    known = set(state.decided)
    first_look = state.after is None
    state.after = observation
    state.on_event("memory", reading_words(observation.last.memory.rows))
    own_pids = state.run.own_pids(observation)
    state.plan = make_plan(
        observation,
        state.spec.policy,
        spare_pids=own_pids,
        hit_before=state.owners_hit,
        killed_commands=frozenset(d.process.command for d in state.decided.values()),
    )
    if observation.act is not None:
        for identity, signal in observation.act.signals.items():
            if decision := state.decided.get(identity):
                state.killed[identity] = decision.line(signal)
    if not first_look:
        fresh = [d for d in state.plan.kill if d.process.identity not in known]
        state.returned.extend(fresh)
        state.comebacks.update({str(d.process.owner) or d.process.command for d in fresh})


def _judge(state: State, observation: Observation) -> Judgement:
    if state.before is None:
        state.before = observation
    evidence = Evidence(
        before=state.before,
        daemons_before=state.daemons_before,
        after=observation,
        plan=state.plan or NO_PLAN,
        killed=tuple(state.decided[i] for i in state.killed if i in state.decided),
        returned=tuple(state.returned),
        stopped=state.stopped_owners,
    )
    return judge_reset(evidence, state.spec.policy, state.spec.access.ssh_command)


def _look_again(state: State, lost: ConnectionLost) -> Observation:
    """The connection went while signals were sent: what came of it is seen over a new one."""
    if state.run.interrupted() or state.left_s <= 0:
        raise lost
    state.on_event("retry", lost.reason)
    reconnect(state)
    script = look_script(
        state.spec.policy, two_samples=True, budget_s=state.left_s, owners=state.owners_hit
    )
    observation = observe(state, script, timeout_s=state.left_s)
    if observation.samples:
        for identity, decision in state.decided.items():
            if not observation.last.has(decision.process):
                state.killed.setdefault(identity, decision.line("KILL"))
    return observation
