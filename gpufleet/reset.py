"""One node: observe → plan → act → verify. Holds the loop and its limits; decides nothing itself.

What may be killed is plan.py's, what it all means is judge.py's. tenacity says when to connect, look
and act again. Nothing here knows SSH: a `Connect` is handed in.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import tenacity

from gpufleet.errors import ConnectionLost, NodeError, ScriptTimeout, Unreachable
from gpufleet.judge import Evidence, Judgement, judge_dry_run, judge_reset
from gpufleet.model import Moment, NodeReport, ProcessLine, Verdict
from gpufleet.node import act_script, close_script, look_script
from gpufleet.observation import Observation, Owner, parse_observation, parse_ports
from gpufleet.plan import NO_PLAN, Decision, Plan, make_plan
from gpufleet.policy import NodeSpec
from gpufleet.report import failed_report, node_report, syslog_line, with_ports
from gpufleet.transport import Connect, Script, Transport

OnEvent = Callable[[str, str], None]
"""Called with a phase (connect, look, kill, free, retry, done) and a detail, for progress on a screen."""

CONNECT_TRIES = 4
"""A dropped or reset connection (MaxStartups, a loaded node) is tried so often, but only until
twice `connect_timeout` has passed: a node that never answers mustn't hold up the others' result."""

IDLE_ROUNDS = 3
"""So many acts without anything to kill: waiting longer is the node's matter, not one more look's."""

_CLOSE_S = 10.0

_ANSWER_MARGIN_S = 15.0
"""The node's own limits end a script; the connection's deadline only catches one that they don't."""


@dataclass(frozen=True)
class Here:
    """The control machine as a node would show itself, and the run's own processes on it.

    Compared by boot id and process namespace: a node may be the very machine that gpufleet runs on.
    """

    boot_id: str
    pid_namespace: str
    pids: frozenset[int]


@dataclass(frozen=True)
class Resetting:
    """What is the same for all nodes of a run. `who` is told to others who meet the lock."""

    run_id: str = ""
    who: str = ""
    dry_run: bool = False
    interrupted: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    here: Here | None = None
    """Where gpufleet runs itself, so that it spares its own processes should that be the node."""

    def own_pids(self, observation: Observation) -> frozenset[int]:
        here = self.here
        node = (observation.boot_id, observation.pid_namespace)
        same = here is not None and node == (here.boot_id, here.pid_namespace)
        return here.pids if here is not None and same else frozenset()


@dataclass
class _State:
    """What one node's reset knows so far."""

    spec: NodeSpec
    connect: Connect
    run: Resetting
    on_event: OnEvent
    started: float
    transport: Transport | None = None
    before: Observation | None = None
    after: Observation | None = None
    plan: Plan | None = None
    attempts: int = 0
    idle_rounds: int = 0
    killed: dict[tuple[int, int], ProcessLine] = field(default_factory=dict)
    decided: dict[tuple[int, int], Decision] = field(default_factory=dict)
    returned: list[Decision] = field(default_factory=list)
    comebacks: Counter[str] = field(default_factory=Counter)
    refused: bool = False
    """The last act didn't take place: the lock is held, or the node lacks something."""
    signalled: bool = False
    """The script of the act under way has said that its signals are out."""

    @property
    def owners_hit(self) -> frozenset[Owner]:
        kinds = {"service", "user-service", "container", "pod"}
        owners = {decision.process.owner for decision in self.decided.values()}
        return frozenset(owner for owner in owners if owner.kind in kinds)

    @property
    def elapsed_s(self) -> float:
        return self.run.clock() - self.started

    @property
    def left_s(self) -> float:
        return self.spec.policy.timeout_s - self.elapsed_s

    @property
    def dying_left_s(self) -> float:
        policy = self.spec.policy
        return max(policy.timeout_s, policy.dying_timeout_s) - self.elapsed_s


def reset_node(
    spec: NodeSpec,
    connect: Connect,
    run: Resetting | None = None,
    on_event: OnEvent = lambda phase, detail: None,
) -> NodeReport:
    """Bring one node to a proven clean slate and report; never raises a `NodeError`."""
    run = run or Resetting()
    started = run.clock()
    moments: list[Moment] = []

    def noted(phase: str, detail: str) -> None:
        """A phase that goes on (a heartbeat each second) is one moment, with its first word."""
        if not moments or phase != moments[-1].phase or phase == "retry":
            moments.append(Moment(round(run.clock() - started, 3), phase, detail))
        on_event(phase, detail)

    state = _State(spec, connect, run, noted, started)
    try:
        report = _reset(state)
    except NodeError as error:
        report = _ended_early(state, error)
    finally:
        if state.transport is not None:
            state.transport.close()
    noted("done", report.verdict.value)
    return replace(report, timeline=tuple(moments))


def _reset(state: _State) -> NodeReport:
    policy = state.spec.policy
    script = look_script(policy, two_samples=True, budget_s=state.left_s)
    state.on_event("look", "")
    observation = _ask(state, script, timeout_s=state.left_s)
    _learn(state, observation)
    state.before = state.after
    if observation.samples and observation.uid != 0:
        raise Unreachable.not_root(observation.uid)
    if state.run.dry_run:
        plan, ssh = state.plan or NO_PLAN, state.spec.access.ssh_command
        host = state.spec.name
        return _report(state, judge_dry_run(observation, plan, policy, ssh, host=host))
    judgement = _judge(state, observation)
    if not _worth_acting(state, judgement):
        return _report(state, judgement)
    rounds = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda result: _worth_acting(state, result)),
        stop=tenacity.stop_never,  # _worth_acting counts attempts and looks at the deadline
        wait=tenacity.wait_random(0, 0.1),
        sleep=state.run.sleep,
        before_sleep=lambda call: state.on_event("retry", _why(call)),
    )
    return _close(state, _report(state, rounds(_act, state)))


def _close(state: _State, report: NodeReport) -> NodeReport:
    """Leave a line in the node's syslog, and learn which ports survivors keep. Both are extras: a
    node that won't take them has its verdict all the same."""
    line = syslog_line(report, state.run.run_id, state.run.who)
    script = close_script(line=line, ports=bool(report.survivors))
    if state.transport is None or not state.attempts:
        return report
    try:
        answer = state.transport.run(script, timeout_s=_CLOSE_S)
    except NodeError:
        return report
    return with_ports(report, parse_ports(answer.text("ports")))


def _worth_acting(state: _State, judgement: Judgement) -> bool:
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
    if state.refused or state.left_s <= 0 or state.run.interrupted():
        return False
    if plan.kill:
        return state.attempts < policy.attempts and max(state.comebacks.values(), default=0) < 2
    return judgement.again and state.idle_rounds < IDLE_ROUNDS


def _act(state: _State) -> Judgement:
    """One round on the node: signal, watch, look again; then judge."""
    assert state.plan is not None
    policy, plan = state.spec.policy, state.plan
    if plan.kill:
        state.attempts += 1
        state.on_event("kill", f"attempt {state.attempts}: {len(plan.kill)} processes")
    else:
        state.idle_rounds += 1
        state.on_event("free", "waiting for memory")
    state.decided.update({decision.process.identity: decision for decision in plan.kill})
    script = act_script(
        policy,
        kill=[decision.process.identity for decision in plan.kill],
        lock=f"run {state.run.run_id} by {state.run.who}",
        budget_s=state.left_s,
        dying_budget_s=state.dying_left_s,
        owners=state.owners_hit,
    )
    limit_s = state.dying_left_s + policy.grace_s + policy.settle_s + policy.limits.smi_s
    try:
        observation = _run(state, script, timeout_s=limit_s)
    except ConnectionLost as lost:
        observation = _look_again(state, lost)
    if (observation.locked or "").startswith(f"run {state.run.run_id} "):
        raise ConnectionLost("the script of a connection that was lost still holds the node's lock")
    _learn(state, observation)
    return _judge(state, observation)


def _learn(state: _State, observation: Observation) -> None:
    """Take in what an observation says of earlier kills and of what came back since."""
    state.refused = not observation.samples
    if state.refused:
        return
    known = set(state.decided)
    first_look = state.after is None
    state.after = observation
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


def _judge(state: _State, observation: Observation) -> Judgement:
    if state.before is None:
        state.before = observation
    evidence = Evidence(
        before=state.before,
        after=observation,
        plan=state.plan or NO_PLAN,
        killed=tuple(state.decided[i] for i in state.killed if i in state.decided),
        returned=tuple(state.returned),
    )
    return judge_reset(evidence, state.spec.policy, state.spec.access.ssh_command)


def _ask(state: _State, script: Script, *, timeout_s: float) -> Observation:
    """Run a script that changes nothing; once more over a new connection if the first was lost."""
    try:
        return _run(state, script, timeout_s=timeout_s)
    except ConnectionLost as lost:
        state.on_event("retry", lost.reason)
        _reconnect(state)
        return _run(state, script, timeout_s=timeout_s)


def _look_again(state: _State, lost: ConnectionLost) -> Observation:
    """The connection went while signals were sent: what came of it is seen over a new one."""
    if state.run.interrupted() or state.left_s <= 0:
        raise lost
    state.on_event("retry", lost.reason)
    _reconnect(state)
    script = look_script(
        state.spec.policy, two_samples=True, budget_s=state.left_s, owners=state.owners_hit
    )
    observation = _run(state, script, timeout_s=state.left_s)
    if observation.samples:
        for identity, decision in state.decided.items():
            if not observation.last.has(decision.process):
                state.killed.setdefault(identity, decision.line("KILL"))
    return observation


def _run(state: _State, script: Script, *, timeout_s: float) -> Observation:
    if state.transport is None:
        state.transport = _connected(state)
    state.signalled = False

    def beat(text: str) -> None:
        state.signalled = state.signalled or text == "signals sent"
        state.on_event("free", text)

    answer = state.transport.run(script, timeout_s=timeout_s + _ANSWER_MARGIN_S, beat=beat)
    return parse_observation(answer)


def _reconnect(state: _State) -> None:
    if state.transport is not None:
        state.transport.close()
        state.transport = None


def _connected(state: _State) -> Transport:
    """Connect; what may pass (dropped, reset, timed out) is tried again with full jitter."""
    tries = tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda error: (
                isinstance(error, Unreachable) and error.transient and not state.run.interrupted()
            )
        ),
        stop=tenacity.stop_after_attempt(CONNECT_TRIES)
        | tenacity.stop_after_delay(min(state.left_s, 2 * state.spec.access.connect_timeout_s)),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
        sleep=state.run.sleep,
        before_sleep=lambda call: state.on_event("retry", _why(call)),
        reraise=True,
    )
    state.on_event("connect", "")
    return tries(state.connect)


def _why(call: tenacity.RetryCallState) -> str:
    """`try 1: connection refused; next in 0.4 s`"""
    outcome = call.outcome
    what = ""
    if outcome is not None:
        what = str(outcome.exception()) if outcome.failed else outcome.result().reason
    pause = call.next_action.sleep if call.next_action else 0
    return f"try {call.attempt_number}: {what}; next in {pause:.1f} s"


def _report(state: _State, judgement: Judgement) -> NodeReport:
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


def _ended_early(state: _State, error: NodeError) -> NodeReport:
    """No finished answer. After the first act the node's state is unknown, whatever the reason."""
    if state.attempts == 0 and state.run.interrupted():
        nothing = Judgement(
            Verdict.NOT_STARTED,
            "interrupted before anything was changed",
            f"gpufleet reset --hosts {state.spec.name}",
        )
        return _report(state, nothing)
    if state.attempts == 0:
        report = failed_report(state.spec, error, elapsed_s=state.elapsed_s)
        if isinstance(error, ScriptTimeout):
            return replace(report, reason=f"no answer to the first look: {error.reason}")
        return report
    reason = "interrupted" if state.run.interrupted() else error.reason
    judgement = Judgement(
        Verdict.UNKNOWN,
        f"{reason}: state not verified",
        f"gpufleet status --hosts {state.spec.name}",
    )
    if state.signalled and state.plan is not None:
        for decision in state.plan.kill:
            unsure = replace(decision, why=f"{decision.why}; end not confirmed")
            state.killed.setdefault(decision.process.identity, unsure.line("KILL"))
        state.plan = replace(state.plan, kill=())
    return _report(state, judgement)
