"""One node: what earlier resets stopped there is started again, as the file on the node says."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import replace

from gpufleet.errors import ConnectionLost, NodeError
from gpufleet.model import NodeReport, Stopped, Verdict
from gpufleet.node import start_script
from gpufleet.observation.managed import Started, one_line, parse_started
from gpufleet.policy import NodeSpec
from gpufleet.report import failed_report
from gpufleet.reset.owners import restored, with_failures
from gpufleet.reset.state import OnEvent
from gpufleet.transport import Answer, Transport

_TOLD_BY = {
    "service": "journalctl -n 50 -u",
    "daemon": "journalctl -n 50 -u",
    "docker": "docker logs --tail 50",
    "podman": "podman logs --tail 50",
    "supervisor": "supervisorctl tail",
}

_ACTIONS = {
    "service": "systemctl start {}",
    "user-service": "systemctl --user start {}",
    "docker": "docker start {}",
    "podman": "podman start {}",
    "supervisor": "supervisorctl start {}",
    "drain": "kubectl uncordon {}",
    "daemon": "systemctl start {}",
    "persistence": "nvidia-smi -i {} -pm 1",
}


def restore_node(
    spec: NodeSpec,
    connect: Callable[[], Transport],
    lock: str,
    on_event: OnEvent = lambda phase, detail: None,
) -> NodeReport:
    """READY where all of it is up, or nothing was to be started; never raises a `NodeError`."""
    began = time.monotonic()
    transport: Transport | None = None
    try:
        on_event("connect", "")
        transport = connect()
        on_event("start", "")
        script = start_script(spec.policy, lock=lock)
        try:
            answer = transport.run(script, timeout_s=4 * spec.policy.limits.owner_s)
        except ConnectionLost:  # what is up already stays so
            transport.close()
            transport = connect()
            answer = transport.run(script, timeout_s=4 * spec.policy.limits.owner_s)
    except NodeError as error:
        return failed_report(spec, error, elapsed_s=time.monotonic() - began)
    finally:
        if transport is not None:
            transport.close()
    return _report(spec, answer, time.monotonic() - began)


def _report(spec: NodeSpec, answer: Answer, elapsed_s: float) -> NodeReport:
    host, ssh = spec.name, spec.access.ssh_command
    verdict, reason, step = Verdict.READY, "", ""
    if "locked" in answer.sections:
        verdict, step = Verdict.SKIPPED, f"{ssh} cat /run/gpufleet/lock  # wait for it"
        reason = f"another reset holds this node: {one_line(answer.text('locked'))}"
    elif "failed" in answer.sections:
        verdict, step = Verdict.UNKNOWN, f"{ssh} cat /var/lib/gpufleet-node/stopped"
        reason = one_line(answer.text("failed"))
    started = parse_started(answer)
    report = NodeReport(
        host,
        spec.access.address,
        verdict,
        reason,
        step,
        elapsed_s=round(elapsed_s, 3),
        stopped=tuple(_line(one) for one in started),
    )
    if reason:
        return report
    report = with_failures(report, started, host)
    why = next((_why(one) for one in started if not one.runs), "")
    return replace(report, next_step=f"{ssh} {why}  # {report.next_step}") if why else report


def _why(one: Started) -> str:
    """The command that says why it doesn't run; "" where there is none: the start once more."""
    asked = _TOLD_BY.get(one.kind)
    return f"{asked} {shlex.quote(one_line(one.target))}" if asked else ""


def _line(one: Started) -> Stopped:
    name = one.target.partition(":")[2] if one.kind == "user-service" else one.target
    action = _ACTIONS.get(one.kind, "{}").format(name)
    known = name if one.kind == "user-service" else one.name
    return Stopped(one_line(known), one_line(action), "yes", restored(one))
