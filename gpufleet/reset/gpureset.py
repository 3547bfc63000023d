"""A GPU reset of one node: asked of the node, and what it stopped put back if the answer was lost."""

from __future__ import annotations

import tenacity

from gpufleet.errors import ConnectionLost, NodeError, ScriptTimeout, Unreachable
from gpufleet.judge import Judgement
from gpufleet.judge.rungs import DAEMON_UNITS
from gpufleet.model import Stopped, Verdict
from gpufleet.node import DAEMON_KINDS, gpu_reset_script, start_script
from gpufleet.observation.managed import Started, one_line, parse_started
from gpufleet.reset.owners import restored
from gpufleet.reset.state import State, Taken
from gpufleet.reset.wire import exchange, reconnect
from gpufleet.transport import Answer


def reset_gpus(state: State) -> Taken:
    """Stop the daemons, reset, start them again; all of that is one script's, so that no lost
    connection comes between. Raises `Unreachable` where it never began."""
    policy, limits = state.spec.policy, state.spec.policy.limits
    script = gpu_reset_script(
        policy, DAEMON_UNITS, lock=state.lock, run=state.run.run_id, who=state.lock
    )
    began = state.run.clock()
    state.on_event("gpu-reset", "")
    try:
        answer = exchange(
            state,
            script,
            timeout_s=policy.rungs_s,
            beat=lambda text: state.on_event("gpu-reset", text),
        )
    except (ConnectionLost, ScriptTimeout) as lost:
        return _put_back(state, lost)
    finally:
        state.hooks_s += state.run.clock() - began
    if "locked" in answer.sections:
        return locked(state, answer)
    if failed := one_line(answer.text("failed")):
        return Taken(f"no: {failed}", end=_unfit(state, failed))
    started = parse_started(answer)
    state.daemons += _stops(answer, started)
    done = _done(answer, limits.gpu_reset_s)
    return Taken(done, done == "yes", _down(state, started))


def locked(state: State, answer: Answer) -> Taken:
    """Another reset came between two scripts of ours: the node is its matter now."""
    reason = f"another reset holds this node: {one_line(answer.text('locked'))}"
    step = f"{state.spec.access.ssh_command} cat /run/gpufleet/lock  # wait for it"
    return Taken(f"no: {reason}", end=Judgement(Verdict.SKIPPED, reason, step))


def _unfit(state: State, failed: str) -> Judgement:
    """Something else is wrong with the node (its disk, as a rule), which a reboot doesn't cure either,
    and from which it may not come back."""
    reason = f"GPU reset: no: {failed}; {state.rungs[-1].why}"
    step = f"{state.spec.access.ssh_command} 'ls -ld /var/lib/gpufleet-node; df -h /var/lib'"
    return Judgement(Verdict.BROKEN, reason, step)


def _done(answer: Answer, limit_s: float) -> str:
    if refused := one_line(answer.text("refused")):
        return f"no: {refused}"
    section = answer.get("reset")
    if section is None:
        return "not confirmed"
    if section.status == "0":
        return "yes"
    if section.status in {"timeout", "124", "137"}:
        return f"failed: no answer in {limit_s:g} s"
    return f"failed: status {section.status}: {one_line(section.text)}"


def _stops(answer: Answer, started: tuple[Started, ...]) -> list[Stopped]:
    """The daemons as the node stopped and started them."""
    again = {(one.kind, one.target): restored(one) for one in started}
    found = []
    for name, section in answer.sections.items():
        if name.startswith("stop."):
            first, _, said = section.text.partition("\n")
            kind, _, target = first.partition(" ")
            well = section.status == "0"
            told = "yes" if well else f"not confirmed: status {section.status}: {one_line(said)}"
            action = f"systemctl stop {target}"
            if kind == "persistence":
                action, target = (
                    f"nvidia-smi -i {target} -pm 0",
                    f"persistence mode of GPU {target}",
                )
            back = again.get((kind, first.partition(" ")[2]), "not confirmed")
            found.append(Stopped(one_line(target), one_line(action), told, back))
    return found


def _down(state: State, started: tuple[Started, ...]) -> Judgement | None:
    down = [one for one in started if not one.runs]
    if not down:
        return None
    names = ", ".join(f"{one.name} ({one.state}: {one.words})" for one in down)
    return Judgement(Verdict.BROKEN, f"not up again after the GPU reset: {names}", _restore(state))


def _put_back(state: State, lost: NodeError) -> Taken:
    """The node's own script starts what it stopped, whatever becomes of the connection; asked again,
    until it is over, because a node that was killed in its midst doesn't."""
    state.on_event("retry", lost.reason)
    policy = state.spec.policy
    script = start_script(policy, lock=state.lock, only=DAEMON_KINDS)

    def ask() -> Answer:
        reconnect(state)
        if state.run.hurried():
            raise ScriptTimeout("interrupted twice")
        state.transport = state.connect_anyway()
        answer = exchange(state, script, timeout_s=4 * policy.limits.daemon_s)
        if answer.text("locked").startswith(f"run {state.run.run_id} "):
            raise ConnectionLost("the GPU reset goes on there")
        return answer

    asking = tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda error: (
                isinstance(error, ConnectionLost)
                or (isinstance(error, Unreachable) and error.transient)
            )
        ),
        stop=tenacity.stop_after_delay(policy.rungs_s),
        wait=tenacity.wait_random(0.5, policy.limits.pause_s),
        sleep=state.run.sleep,
        reraise=True,
    )
    try:
        answer = asking(ask)
    except NodeError as error:
        reason = f"{lost.reason} in the midst of a GPU reset, then {error.reason}"
        end = f"{reason}: what it stopped may not run again"
        return Taken("not confirmed", end=Judgement(Verdict.UNKNOWN, end, _restore(state)))
    if said := one_line(answer.text("failed") or answer.text("locked")):
        end = (
            f"{lost.reason} in the midst of a GPU reset; what it stopped may not run again: {said}"
        )
        return Taken("not confirmed", end=Judgement(Verdict.UNKNOWN, end, _restore(state)))
    return Taken(
        f"not confirmed: {lost.reason}", worked=True, end=_down(state, parse_started(answer))
    )


def _restore(state: State) -> str:
    return f"gpufleet restore --hosts {state.spec.name}"
