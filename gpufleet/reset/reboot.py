"""A reboot of one node, and the wait until it is back: another boot id, over a new connection."""

from __future__ import annotations

import tenacity
from tenacity.stop import stop_base

from gpufleet.errors import ConnectionLost, NodeError, ScriptTimeout, Unreachable
from gpufleet.judge import Judgement
from gpufleet.model import Verdict
from gpufleet.node import boot_script, reboot_script
from gpufleet.observation.managed import one_line
from gpufleet.records import dataclass
from gpufleet.reset.gpureset import locked
from gpufleet.reset.state import State, Taken
from gpufleet.reset.wire import exchange, reconnect
from gpufleet.transport import Answer

_LOGINS = 3
"""Refused logins at most while a node boots (a directory that isn't up yet): more could lock."""

_BOOT_S = 30.0

_BOOTING = frozenset({"initializing", "starting", "stopping", "unknown"})
"""Words of systemd for a node that isn't through, or goes down once more, or doesn't know."""


class _NotYet(NodeError):
    """The node isn't back."""


@dataclass
class _Waiting:
    """What is known of the boot under way."""

    old: str
    refused: int = 0

    def ends(self, error: NodeError) -> bool:
        """Whether another login would be refused as well, or could lock the account."""
        if not isinstance(error, Unreachable):
            return False
        self.refused += error.stage == "authentication"
        return error.stage == "host-key" or self.refused >= _LOGINS


def reboot(state: State) -> Taken:
    """Ask for the reboot and wait for it. A connection that is lost meanwhile is what a reboot looks
    like. Raises `Unreachable` where it was never asked for."""
    policy = state.spec.policy
    assert state.after is not None
    waiting = _Waiting(state.after.boot_id)
    script = reboot_script(policy, boot_id=waiting.old, lock=state.lock, who=state.lock)
    began = state.run.clock()
    state.on_event("reboot", "")
    try:
        answer = exchange(state, script, timeout_s=4 * policy.limits.tool_s)
    except (ConnectionLost, ScriptTimeout):
        answer = None
    if answer is not None:
        if answer.get("locked"):
            return locked(state, answer)
        if said := answer.text("failed") or answer.text("refused"):
            return Taken(f"no: {one_line(said)}")
        tries = [s for name, s in answer.sections.items() if name.startswith("reboot.")]
        if not any(s.status in {"0", "124", "137"} for s in tries):
            words = "; ".join(f"{one_line(s.text)} (status {s.status})" for s in tries)
            return Taken(f"failed: {words or 'the node has no command for it'}")
    state.lose_sight()
    try:
        return _wait(state, waiting)
    finally:
        state.hooks_s += state.run.clock() - began


def _wait(state: State, waiting: _Waiting) -> Taken:
    policy = state.spec.policy
    began = state.run.clock()
    asking = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_NotYet),
        stop=tenacity.stop_after_delay(policy.reboot_timeout_s) | _Interrupted(state),
        wait=tenacity.wait_random(policy.limits.pause_s / 2, policy.limits.pause_s),
        sleep=state.run.sleep,
        reraise=True,
    )
    try:
        asking(_ask, state, waiting)
    except NodeError as error:
        return _not_back(state, error, policy.reboot_timeout_s)
    state.on_event("boot", f"back after {state.run.clock() - began:.0f} s")
    return Taken("yes", worked=True, end=_still_starting(state, waiting))


def _ask(state: State, waiting: _Waiting) -> None:
    """Raises `_NotYet` while waiting helps, the `Unreachable` itself where it doesn't."""
    reconnect(state)
    try:
        state.transport = state.connect()
        boot_id = exchange(state, boot_script(state.spec.policy), timeout_s=_BOOT_S)
    except (ConnectionLost, ScriptTimeout, Unreachable) as error:
        if waiting.ends(error):
            raise
        state.on_event("boot", error.reason)
        raise _NotYet(error.reason) from error
    if boot_id.text("boot").strip() in {"", waiting.old}:
        state.on_event("boot", "not down yet")
        raise _NotYet("it has not gone down")


def _still_starting(state: State, waiting: _Waiting) -> Judgement | None:
    """Services that come later could bring the workload: what is seen before they run proves nothing."""
    limits = state.spec.policy.limits
    until = state.run.clock() + limits.ready_s
    while True:
        state.allow(limits.ready_s)
        try:
            answer = exchange(state, boot_script(state.spec.policy), timeout_s=_BOOT_S)
            running = _how_far(answer)
        except (ConnectionLost, ScriptTimeout, Unreachable) as error:
            # The network and sshd may be started once more after the first login.
            if waiting.ends(error) or state.run.clock() >= until or state.run.interrupted():
                raise
            reconnect(state)
            running = "starting"
        if running not in _BOOTING:
            return None
        if state.run.clock() >= until or state.run.interrupted():
            reason = f"back after a reboot, and still {running} (systemctl is-system-running)"
            step = f"{state.spec.access.ssh_command} systemctl list-jobs"
            return Judgement(Verdict.UNKNOWN, reason, step)
        state.on_event("boot", running)
        state.run.sleep(limits.pause_s)


def _how_far(answer: Answer) -> str:
    """The word of systemd; one that doesn't answer in time doesn't know either. "" on a node without it."""
    section = answer.get("running")
    if section is not None and section.status in {"124", "137"}:
        return "unknown"
    return answer.text("running").strip()


def _not_back(state: State, error: NodeError, limit_s: float) -> Taken:
    host = state.spec.name
    if state.run.interrupted():
        reason = "interrupted while the node reboots: state not verified"
        end = Judgement(Verdict.UNKNOWN, reason, f"gpufleet status --hosts {host}")
        return Taken("yes, its end not seen", end=end)
    if not isinstance(error, _NotYet):
        reason = f"rebooted, and since then: {error.reason}"
        step = error.next_step or f"gpufleet status --hosts {host}"
        return Taken(f"not seen back: {error.reason}", end=Judgement(Verdict.UNKNOWN, reason, step))
    reason = f"a reboot was asked for, and the node is not back after {limit_s:g} s: {error.reason}"
    step = f"gpufleet status --hosts {host}  # or its console, over the BMC"
    return Taken(f"not back after {limit_s:g} s", end=Judgement(Verdict.BROKEN, reason, step))


class _Interrupted(stop_base):
    def __init__(self, state: State) -> None:
        self._state = state

    def __call__(self, _call: tenacity.RetryCallState) -> bool:
        return self._state.run.interrupted()
