"""The guard before anything is touched, `before` and `after` around what is done. See docs/hooks.md.

Says what came of each; whether the node's reset goes on is the loop's matter.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace

from gpufleet.errors import ConnectionLost, NodeError, Unreachable
from gpufleet.judge import Judgement
from gpufleet.masking import masked_command, printable
from gpufleet.model import NodeReport, Verdict
from gpufleet.node import hook_script
from gpufleet.observation.hook import HookAnswer, parse_hook
from gpufleet.reset.local import run_local
from gpufleet.reset.state import State
from gpufleet.reset.wire import ask, exchange, reconnect
from gpufleet.transport import Answer, Script

_LOCAL = "local:"


def ask_guard(state: State, judgement: Judgement) -> Judgement | None:
    """None where the reset may go on; else why not. Asked again if its connection was lost, since
    a guard changes nothing. `judgement`: what the look found, of which a fault is told as well."""
    hooks = state.spec.hooks
    if not hooks.guard:
        return None
    state.on_event("guard", "")
    script = hook_script(
        "guard", hooks.guard, timeout_s=hooks.guard_timeout_s, lock="", facts=_facts(state, "guard")
    )
    answer = parse_hook(_timed(state, script, hooks.guard_timeout_s, ask))
    if answer.well:
        return None
    step = _by_hand(state, hooks.guard)
    if answer.status == "1" and not answer.failure:
        said = f": {answer.output}" if answer.output else ""
        also = f"; {judgement.reason}" if judgement.verdict is Verdict.BROKEN else ""
        return Judgement(
            Verdict.SKIPPED, f"its guard said no{said}{also}", step, judgement.warnings
        )
    words = answer.words("guard", hooks.guard_timeout_s)
    return Judgement(Verdict.UNKNOWN, f"{words}: nothing was touched", step, judgement.warnings)


def run_before(state: State) -> Judgement | None:
    """None where the reset may go on. Holds the node's lock meanwhile; where another reset has it,
    nothing is run and no `after` is due: an undrain in the midst of another's reset would harm."""
    hooks, host = state.spec.hooks, state.spec.name
    local = _is_local(hooks.before)
    state.opened = not local
    if not hooks.before:
        return None
    state.on_event("before", "")
    script = hook_script(
        "before",
        "" if local else hooks.before,
        timeout_s=hooks.before_timeout_s,
        lock=state.lock,
        facts=_facts(state, "before"),
    )
    try:
        answer = parse_hook(_timed(state, script, hooks.before_timeout_s, exchange))
    except Unreachable:
        state.opened = False  # it never started
        raise
    if answer.failure or answer.locked is not None:
        state.opened = False
    if answer.locked is not None:
        step = f"{state.spec.access.ssh_command} cat /run/gpufleet/lock  # wait for it"
        reason = f"another reset holds this node: {answer.locked or 'it did not say who it is'}"
        return Judgement(Verdict.SKIPPED, reason, step)
    if local and not answer.failure:
        state.opened = True
        answer = _here(state, "before", hooks.before, hooks.before_timeout_s, state.run.interrupted)
    if answer.well:
        return None
    words = answer.words("before", hooks.before_timeout_s)
    step = _by_hand(state, hooks.before) or f"gpufleet status --hosts {host}"
    return Judgement(Verdict.UNKNOWN, f"{words}: nothing was killed", step)


def run_after(state: State, report: NodeReport) -> NodeReport:
    """The report, with a warning if `after` didn't end well: the verdict on the GPUs stands."""
    hooks = state.spec.hooks
    if not (hooks.after and state.opened):
        return report
    state.on_event("after", "")
    try:
        answer = _after(state, report)
        words = "" if answer.well else answer.words("after", hooks.after_timeout_s)
    except NodeError as error:
        words = f"after may not have run: {error.reason}"
    if words:
        step = _by_hand(state, hooks.after)
        report = replace(report, warnings=(*report.warnings, f"{words}; by hand: {step}"))
    return replace(report, elapsed_s=round(state.elapsed_s, 3))


def told(state: State) -> tuple[str, ...]:
    """For a dry run: what would be run around the kills."""
    hooks = state.spec.hooks
    named = (("before", hooks.before), ("after", hooks.after))
    return tuple(
        f"would run {name}: {masked_command([command])}" for name, command in named if command
    )


def _after(state: State, report: NodeReport) -> HookAnswer:
    """Over the connection that there is, else over a new one that an interrupt doesn't cut; a
    connection lost in its midst has it run again, because a node that stays drained is worse."""
    hooks = state.spec.hooks
    facts = _facts(state, "after", report)
    if _is_local(hooks.after):
        return _here(state, "after", hooks.after, hooks.after_timeout_s, state.run.hurried, report)
    script = hook_script(
        "after", hooks.after, timeout_s=hooks.after_timeout_s, lock="", facts=facts
    )
    if state.transport is not None and not state.run.interrupted():
        try:
            return parse_hook(_timed(state, script, hooks.after_timeout_s, exchange))
        except (ConnectionLost, Unreachable) as error:
            state.on_event("retry", error.reason)
    reconnect(state)
    if state.run.hurried():
        raise ConnectionLost("interrupted twice")
    state.transport = state.connect_anyway()
    return parse_hook(_timed(state, script, hooks.after_timeout_s, exchange))


def _here(
    state: State,
    name: str,
    command: str,
    timeout_s: float,
    stop: Callable[[], bool],
    report: NodeReport | None = None,
) -> HookAnswer:
    began = state.run.clock()
    try:
        return run_local(
            name,
            command.strip().removeprefix(_LOCAL).strip(),
            timeout_s=timeout_s,
            facts=_facts(state, name, report),
            stop=stop,
        )
    finally:
        state.hooks_s += state.run.clock() - began


def _timed(state: State, script: Script, timeout_s: float, how: Callable[..., Answer]) -> Answer:
    """Runs a hook's script; what it takes isn't the node's own time."""
    began = state.run.clock()
    try:
        return how(state, script, timeout_s=timeout_s + 10)
    finally:
        state.hooks_s += state.run.clock() - began


def _facts(state: State, name: str, report: NodeReport | None = None) -> dict[str, str]:
    facts = {
        "HOOK": name,
        "HOST": state.spec.name,
        "ADDRESS": state.spec.access.address,
        "RUN_ID": state.run.run_id,
        "DRY_RUN": "1" if state.run.dry_run else "",
        "VERDICT": report.verdict.value if report else "",
        "REASON": report.reason if report else "",
        "KILLED": str(len(report.killed)) if report else "",
    }
    # A reason quotes what a node said, whatever bytes that were.
    return {fact: printable(value) for fact, value in facts.items()}


def _is_local(command: str) -> bool:
    return command.lstrip().startswith(_LOCAL)


def _by_hand(state: State, command: str) -> str:
    """The command as a person would run it."""
    shown = masked_command([command.strip()])
    if _is_local(command):
        return f"GPUFLEET_HOST={state.spec.name} sh -c {shlex.quote(shown[len(_LOCAL) :].strip())}"
    if "\n" in command.strip() or len(shown) > 300:
        return f"{state.spec.access.ssh_command}  # and run its hook there by hand"
    return f"{state.spec.access.ssh_command} {shlex.quote(shown)}"
