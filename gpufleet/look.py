"""One node: a single look for `status` and `check`. Changes nothing, takes no lock, never kills."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gpufleet.dialing import Dialing, dial
from gpufleet.errors import NodeError, Unreachable
from gpufleet.judge import Judgement, judge_status
from gpufleet.model import Moment, NodeReport, Verdict
from gpufleet.node import look_script, owners_script
from gpufleet.observation import HOST_PID_NAMESPACE, Observation, parse_observation
from gpufleet.observation.managed import Managed, parse_managed
from gpufleet.plan import NO_PLAN, Plan, make_plan
from gpufleet.plan.managed import described, owners_of
from gpufleet.policy import NodeSpec
from gpufleet.report import described_report, failed_report, node_report
from gpufleet.transport import Connect, Transport

_ANSWER_MARGIN_S = 15.0
_OWNERS_S = 40.0

Judge = Callable[[Observation, Plan, NodeSpec], Judgement]

OnEvent = Callable[[str, str], None]
"""Called with a phase (connect, retry, look) and a detail, for progress on a screen."""

_UNSEEN: OnEvent = lambda phase, detail: None  # noqa: E731  # a default with a type

Interrupted = Callable[[], bool]
_NEVER: Interrupted = lambda: False  # noqa: E731  # as above


def status_node(
    spec: NodeSpec,
    connect: Connect,
    on_event: OnEvent = _UNSEEN,
    interrupted: Interrupted = _NEVER,
) -> NodeReport:
    """IDLE, BUSY, BROKEN, UNKNOWN or UNREACHABLE; never raises a `NodeError`."""
    return _look(spec, connect, _as_status, on_event, interrupted)


def check_node(
    spec: NodeSpec,
    connect: Connect,
    on_event: OnEvent = _UNSEEN,
    interrupted: Interrupted = _NEVER,
) -> NodeReport:
    """READY when a reset could work here: login, root, tools, GPU count; else why not."""
    return _look(spec, connect, _as_check, on_event, interrupted)


def _as_status(observation: Observation, plan: Plan, spec: NodeSpec) -> Judgement:
    return judge_status(observation, plan, spec.policy, spec.access.ssh_command)


def _as_check(observation: Observation, plan: Plan, spec: NodeSpec) -> Judgement:
    if observation.samples and observation.uid != 0:
        raise Unreachable.not_root(observation.uid)
    judgement = _as_status(observation, plan, spec)
    if observation.missing:
        reason = f"missing on the node: {', '.join(observation.missing)}"
        what = "apt-get install psmisc findutils util-linux coreutils"
        if "nvidia-smi" in observation.missing:  # the driver's, and no package's of these
            what = "nvidia-smi"
        step = f"{spec.access.ssh_command} {what}"
        judgement = Judgement(Verdict.UNKNOWN, reason, step, judgement.warnings)
    if observation.pid_namespace not in {"", HOST_PID_NAMESPACE}:
        note = f"this login sees process namespace {observation.pid_namespace}: a container?"
        judgement = replace(judgement, warnings=(*judgement.warnings, note))
    if judgement.verdict in {Verdict.IDLE, Verdict.BUSY}:
        return replace(judgement, verdict=Verdict.READY, reason="")
    return judgement


def _look(
    spec: NodeSpec, connect: Connect, judge: Judge, on_event: OnEvent, interrupted: Interrupted
) -> NodeReport:
    started = time.monotonic()
    transport: Transport | None = None
    moments: list[Moment] = []

    def began(phase: str, detail: str) -> None:
        moments.append(Moment(round(time.monotonic() - started, 3), phase, detail))
        on_event(phase, detail)

    def on_retry(number: int, why: str, pause_s: float) -> None:
        began("retry", f"try {number}: {why}; next in {pause_s:.1f} s")

    try:
        began("connect", "")
        dialing = Dialing(spec.policy.timeout_s, interrupted, on_retry=on_retry)
        transport = dial(connect, spec.access, dialing)
        began("look", "")
        script = look_script(spec.policy, two_samples=False, budget_s=spec.policy.timeout_s)
        answer = transport.run(script, timeout_s=spec.policy.timeout_s + _ANSWER_MARGIN_S)
        observation = parse_observation(answer)
        plan = make_plan(observation, spec.policy) if observation.samples else NO_PLAN
        judgement = judge(observation, plan, spec)
        managed = _ask_owners(plan, observation, spec, transport)
    except NodeError as error:
        report = failed_report(spec, error, elapsed_s=time.monotonic() - started)
        return replace(report, timeline=_ended(moments, report))
    finally:
        if transport is not None:
            transport.close()
    report = node_report(
        spec, judgement, elapsed_s=time.monotonic() - started, after=observation, plan=plan
    )
    said = {d: described(d, managed, observation) for d in plan.kill}
    return replace(described_report(report, said), timeline=_ended(moments, report))


def _ended(moments: list[Moment], report: NodeReport) -> tuple[Moment, ...]:
    return (*moments, Moment(report.elapsed_s, "done", report.verdict.value))


def _ask_owners(
    plan: Plan, observation: Observation, spec: NodeSpec, transport: Transport
) -> Managed:
    """Of what a reset would kill. That nobody answers is no failure of a look."""
    owners, supervisor = owners_of(plan, observation) if plan.kill else (frozenset(), False)
    if not owners and not supervisor:
        return Managed()
    script = owners_script(spec.policy, owners, supervisor=supervisor)
    try:
        return parse_managed(transport.run(script, timeout_s=_OWNERS_S))
    except NodeError:
        return Managed()
