"""One round on a node: act, look again, and what that teaches. `gpufleet.reset` says how many."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.errors import ConnectionLost
from gpufleet.judge import Evidence, Judgement, judge_reset
from gpufleet.model import Verdict
from gpufleet.node import act_name, act_script, look_script
from gpufleet.observation import Observation, parse_observation, reading_words
from gpufleet.plan import NO_PLAN, make_plan
from gpufleet.reset.repeats import note_again, patiently
from gpufleet.reset.state import State, crowd_of
from gpufleet.reset.wire import ask, observe, reconnect

IDLE_ROUNDS = 3
"""So many acts without anything to kill: waiting longer is the node's matter, not one more look's."""


def worth_acting(state: State, judgement: Judgement) -> bool:
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
    if strangers(state):
        return False
    if plan.kill:
        tries = state.attempts - state.attempts_earlier
        return tries < policy.attempts and max(state.comebacks.values(), default=0) < 2
    return judgement.again and state.idle_rounds < IDLE_ROUNDS


def strangers(state: State) -> str:
    """Whose processes would be killed and were not shown: `alice, bob in slurm job 7`, or ""."""
    shown = state.run.shown
    if shown is None or state.plan is None:
        return ""
    lines = tuple(decision.line() for decision in state.plan.kill)
    crowd = crowd_of(lines) - shown.get(state.spec.name, frozenset())
    return ", ".join(f"{user}{f' in {job}' if job else ''}" for user, job in sorted(crowd))


def act(state: State) -> Judgement:
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
        observation = _what_came_of_it(state, lost)
    if (observation.locked or "").startswith(f"run {state.run.run_id} "):
        raise ConnectionLost("the script of a connection that was lost still holds the node's lock")
    note_again(state, observation)
    learn(state, observation)
    judgement = judge(state, observation)
    if not state.refused and (who := strangers(state)):
        left = f"since you were asked, processes of {who} have come, which were left alone"
        return replace(judgement, reason=f"{left}; {judgement.reason}")
    return judgement


def look_anew(state: State) -> Observation:
    """Another look before the first kill: nothing can have come back yet."""
    script = look_script(
        state.spec.policy, two_samples=True, budget_s=state.left_s, owners=state.owners_hit
    )
    state.on_event("look", "")
    state.after = None
    observation = parse_observation(ask(state, script, timeout_s=state.left_s))
    learn(state, observation)
    if state.rungs:
        state.daemons_before = observation
    return observation


def _what_came_of_it(state: State, lost: ConnectionLost) -> Observation:
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


def learn(state: State, observation: Observation) -> None:
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
    if not first_look and known:  # nothing comes back where nothing was killed
        fresh = [d for d in state.plan.kill if d.process.identity not in known]
        state.returned.extend(fresh)
        state.comebacks.update({str(d.process.owner) or d.process.command for d in fresh})


def judge(state: State, observation: Observation) -> Judgement:
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
