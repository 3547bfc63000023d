"""An act that another process of the same run has begun: its engine lost sight of it and asks again.

The node itself refuses it (node/once.sh) and hands back what came of the first. See docs/scaling.md.
"""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.observation import Observation
from gpufleet.reset.state import State

_PAUSE_S = 1.0


def patiently(state: State, act: Callable[[], Observation]) -> Observation:
    """`act`, once the node's lock isn't held by the same run any more: by a process that may live on
    although its engine took it for dead. Its result is then handed to us."""
    while True:
        observation = act()
        own = (observation.locked or "").startswith(f"run {state.run.run_id} ")
        if not (own and state.run.repeatable) or state.left_s <= 0 or state.run.interrupted():
            return observation
        state.on_event("retry", "another worker of this run is at it")
        state.run.sleep(_PAUSE_S)


def note_again(state: State, observation: Observation) -> None:
    """What it means for this node's report that the act had begun before."""
    again = observation.again
    if again is None:
        return
    ago = f"another worker of this run began act {state.attempts} {again.since_s:.0f} s before"
    if again.done:
        count = len(observation.act.signals) if observation.act else 0
        state.notes.append(f"{ago}, and signalled {count}: that act's result is told here")
    else:
        state.repeated = True
        state.notes.append(f"{ago}, and was lost: nothing was killed again")
