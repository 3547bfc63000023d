"""One round from its seed to its findings, on one node. Sets up, lets go, looks, judges, cleans up."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from tests.simfleet import SimFleet, SimFleetError, SimNode

from .drawing import Round, draw
from .findings import Kind, Violation
from .leftovers import await_quiet
from .oracle import judge_lock, judge_outcome, judge_survivors, races_of, report_of
from .runner import Outcome, Runner, limit_s
from .stage import Stage
from .truth import now_s, take_snapshot

PATIENCE_S = 40.0
"""So long after its limit is a reset waited for, to tell slow from hung for ever."""


@dataclass
class Played:
    """A finished round. `verdicts`: one for each of its runs over the node."""

    drawn: Round
    verdicts: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    races: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    deeds: list[str] = field(default_factory=list)
    took_s: float = 0.0
    over_budget_s: float = 0.0
    stuck: bool = False
    """A run never came back: its node can't be used any more."""

    @property
    def spoilt(self) -> bool:
        """Chaos couldn't play the round at all, so that the next would end alike."""
        return not self.verdicts and any(v.kind is Kind.BROKEN_CHAOS for v in self.violations)

    @property
    def needless(self) -> bool:
        """Nothing stood in the way, and yet it isn't CLEAN: no harm, but worth a look."""
        return self.drawn.quiet and self.verdicts != ["CLEAN"]


def play_round(fleet: SimFleet, node: SimNode, seed: int) -> Played:
    """Never raises for what goes wrong in the round: that is a finding."""
    played = Played(draw(seed))
    begun = time.monotonic()
    try:
        _play(fleet, node, played)
    except (SimFleetError, OSError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        played.violations.append(Violation(Kind.BROKEN_CHAOS, text))
    played.took_s = time.monotonic() - begun
    return played


def _play(fleet: SimFleet, node: SimNode, played: Played) -> None:
    drawn = played.drawn
    stage = Stage(node, drawn)
    runners = [Runner(fleet, node, drawn)]
    stage.interrupt = runners[0].interrupt.stop

    def second() -> None:
        runners.append(Runner(fleet, node, drawn))
        runners[-1].start()

    stage.second_run = second
    stage.set_up()
    before = take_snapshot(node)
    started_s = now_s()
    player = threading.Thread(target=stage.play, args=(time.monotonic(),), name=f"play {node.name}")
    runners[0].start()
    player.start()
    try:
        played.stuck = not all(_ended(runner, drawn) for runner in list(runners))
        stage.over.set()
        player.join()  # it may have started the second run at the last moment
        played.stuck = played.stuck or not all(_ended(runner, drawn) for runner in runners)
    finally:
        stage.over.set()
        player.join()
    outcomes = [runner.outcome for runner in runners]
    if played.stuck:
        played.violations.append(Violation(Kind.HUNG, "for ever"))
        return
    under_lock = take_snapshot(node)
    stage.calm_down()
    if left := await_quiet(stage, started_s):
        played.violations.append(Violation(Kind.LEFT, left))
    after = take_snapshot(node)
    for outcome in outcomes:
        played.violations.extend(judge_outcome(stage, outcome, before))
        played.races.extend(races_of(stage, outcome))
        _note(played, stage, outcome)
    played.violations.extend(judge_survivors(stage, before, after))
    played.violations.extend(judge_lock(stage, before, under_lock))
    played.deeds = [
        f"{d.begun_s - started_s:+.2f} {d.verb} {d.trouble} {d.error}" for d in stage.deeds
    ]


def _ended(runner: Runner, drawn: Round) -> bool:
    return runner.join(limit_s(drawn) + PATIENCE_S)


def _note(played: Played, stage: Stage, outcome: Outcome) -> None:
    if report := report_of(stage, outcome):
        played.verdicts.append(str(report.verdict))
        why = report.reason or "-"
        played.reasons.append(f"{report.verdict} in {report.elapsed_s:.2f} s: {why[:400]}")
        policy = stage.drawn.policy
        budget_s = max(policy.timeout_s, policy.dying_timeout_s)
        over_s = report.elapsed_s - budget_s
        played.over_budget_s = max(played.over_budget_s, over_s)
