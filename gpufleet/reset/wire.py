"""One node's connection: opened with patience, opened again if lost, asked one script at a time."""

from __future__ import annotations

import tenacity

from gpufleet.dialing import Dialing, dial
from gpufleet.errors import ConnectionLost
from gpufleet.observation import Observation, parse_memory_csv, parse_observation, reading_words
from gpufleet.reset.state import State
from gpufleet.transport import Answer, Beat, Script, Transport

_SENT = {"TERM sent": "TERM", "signals sent": "KILL"}

_ANSWER_MARGIN_S = 15.0
"""The node's own limits end a script; the connection's deadline only catches one that they don't."""


def ask(state: State, script: Script, *, timeout_s: float) -> Answer:
    """Run a script that changes nothing; once more over a new connection if the first was lost."""
    try:
        return exchange(state, script, timeout_s=timeout_s)
    except ConnectionLost as lost:
        state.on_event("retry", lost.reason)
        reconnect(state)
        return exchange(state, script, timeout_s=timeout_s)


def observe(state: State, script: Script, *, timeout_s: float) -> Observation:
    """Run a script that looks or acts, and notes when its signals are out."""
    state.signalled = ""
    beat = _hearing(state)
    return parse_observation(exchange(state, script, timeout_s=timeout_s, beat=beat))


def _hearing(state: State) -> Beat:
    """Tells the heartbeats of a script that looks or acts: `dying: 4711 | 0, 61000 MiB;1, 0 MiB`."""

    def beat(text: str) -> None:
        state.signalled = _SENT.get(text, state.signalled)
        said, _, rows = text.partition(" | ")
        state.on_event(*(("settle", "") if said == "settle" else ("free", said)))
        if rows:
            state.on_event("memory", reading_words(parse_memory_csv(rows.replace(";", "\n"))[0]))

    return beat


def exchange(state: State, script: Script, *, timeout_s: float, beat: Beat | None = None) -> Answer:
    if state.transport is None:
        state.transport = _connected(state)
    if script.name == "look":
        state.on_event("look", "")
        beat = beat or _hearing(state)
    return state.transport.run(script, timeout_s=timeout_s + _ANSWER_MARGIN_S, beat=beat)


def reconnect(state: State) -> None:
    """The next script opens a new connection."""
    if state.transport is not None:
        state.transport.close()
        state.transport = None


def why(call: tenacity.RetryCallState) -> str:
    """`try 1: connection refused; next in 0.4 s`"""
    outcome = call.outcome
    what = ""
    if outcome is not None:
        what = str(outcome.exception()) if outcome.failed else outcome.result().reason
    pause = call.next_action.sleep if call.next_action else 0
    return f"try {call.attempt_number}: {what}; next in {pause:.1f} s"


def _connected(state: State) -> Transport:
    """Connect; what may pass (dropped, reset, timed out) is tried again with full jitter."""
    dialing = Dialing(
        left_s=state.left_s,
        interrupted=state.run.interrupted,
        sleep=state.run.sleep,
        on_retry=lambda number, reason, pause_s: state.on_event(
            "retry", f"try {number}: {reason}; next in {pause_s:.1f} s"
        ),
    )
    state.on_event("connect", "")
    return dial(state.connect, state.spec.access, dialing)
