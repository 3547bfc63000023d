"""What one node's reset learned, for judging. Pure data."""

from __future__ import annotations

from gpufleet.observation import Observation, Owner
from gpufleet.plan import Decision, Plan
from gpufleet.records import dataclass


@dataclass(frozen=True)
class Evidence:
    """All that one node's reset learned: the first look, the newest observation and its plan.

    `killed`: every process signalled so far. `returned`: candidates that came after an act.
    """

    before: Observation
    after: Observation
    plan: Plan
    killed: tuple[Decision, ...] = ()
    returned: tuple[Decision, ...] = ()
    stopped: frozenset[Owner] = frozenset()
    """Owners that were stopped by their own tools."""
    daemons_before: Observation | None = None
    """What GPU daemons are compared with, where that isn't `before`: they were bounced on purpose."""
