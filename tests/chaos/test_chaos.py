"""A short run of chaos finds nothing; a sabotaged gpufleet is found out, whatever was done to it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.judge import Judgement
from gpufleet.model import Verdict
from gpufleet.observation import Observation
from gpufleet.plan import Decision, Plan
from gpufleet.policy import Policy
from tests.simfleet import SimFleet, missing

from . import crew
from .drawing import draw
from .fates import Fate
from .findings import Kind
from .playing import play_round
from .shielded import SHIELDED
from .workloads import WORKLOADS

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

ROUND = importlib.import_module("gpufleet.reset.rounds")
ENOUGH = 40
"""Rounds in which each sabotage has shown itself many times over."""


@pytest.fixture(scope="module")
def chaos_fleet() -> Iterator[SimFleet]:
    with SimFleet(1) as fleet:
        yield fleet


def test_a_short_run_finds_nothing() -> None:
    lines: list[str] = []

    tally = crew.run(25, 11, 4, lines.append)

    assert not tally.failed, "\n".join([*lines, str(tally)])
    assert tally.resets >= 25
    assert tally.verdicts["CLEAN"] >= 5  # and not because nothing is ever claimed
    assert len(tally.verdicts) >= 3


def test_a_seed_always_draws_the_same_round() -> None:
    assert [draw(seed) for seed in range(50)] == [draw(seed) for seed in range(50)]


def test_every_part_and_trouble_is_drawn() -> None:
    rounds = [draw(seed) for seed in range(1500)]
    kinds = {trouble.kind for drawn in rounds for trouble in drawn.troubles}
    fates = {fate for drawn in rounds for _, fate in drawn.rows}

    assert len({part.name for drawn in rounds for part in drawn.parts}) > 25
    assert len(WORKLOADS) + len(SHIELDED) > 25
    assert fates == {Fate.DIE, Fate.LIVE}
    assert {
        "fault",
        "memory",
        "tool",
        "drop",
        "silence",
        "lock",
        "spoil",
        "daemon",
        "late",
    } <= kinds
    assert {"freeze", "churn", "forker", "reuse", "interrupt", "second run"} <= kinds
    assert {"sshd-stop", "sshd-freeze", "sshd-restart"} <= kinds


def always_clean(inner: Callable[..., Judgement]) -> Callable[..., Judgement]:
    """A judge that takes whatever it sees for fine."""
    return lambda *args: Judgement(Verdict.CLEAN, "", "")


def careless_of_health(inner: Callable[..., Judgement]) -> Callable[..., Judgement]:
    """A judge for whom 0 MiB is all that counts."""

    def judge(evidence: Any, policy: Policy, ssh: str) -> Judgement:
        judgement = inner(evidence, policy, ssh)
        used = evidence.after.last.memory.used_mib() if evidence.after.samples else {}
        free = len(used) == policy.gpus and not any(used.values())
        return Judgement(Verdict.CLEAN, "", "") if free else judgement

    return judge


def kills_the_spared(inner: Callable[..., Plan]) -> Callable[..., Plan]:
    """A plan that takes each candidate it should spare, but for its own session."""

    def plan(observation: Observation, *args: Any, **more: Any) -> Plan:
        made = inner(observation, *args, **more)
        kept = {"init", "kernel", "own", "sshd"}
        taken: list[Decision] = [d for d in made.spare if d.rule not in kept]
        return replace(made, kill=(*made.kill, *taken))

    return plan


def kills_in_jobs(inner: Callable[..., Plan]) -> Callable[..., Plan]:
    return lambda *args, **more: replace(inner(*args, **more), jobs=())


def hurried(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Scripts that take the second sample at once."""
    return lambda policy, **more: inner(replace(policy, settle_s=0.0), **more)


def lenient(inner: Callable[..., Judgement]) -> Callable[..., Judgement]:
    """A judge that doesn't ask how far the samples are apart."""
    return lambda evidence, policy, ssh: inner(evidence, replace(policy, settle_s=0.0), ssh)


def crashes(inner: Callable[..., Any]) -> Callable[..., Any]:
    def crash(*args: Any, **more: Any) -> Any:
        raise KeyError("a bug")

    return crash


def silent(inner: Callable[..., Judgement]) -> Callable[..., Judgement]:
    """A judge that never says what to do next."""
    return lambda *args: replace(inner(*args), next_step="")


Sabotage = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ({"judge_reset": always_clean}, Kind.WRONG_CLEAN),
        ({"judge_reset": careless_of_health}, Kind.WRONG_CLEAN),
        (
            {"look_script": hurried, "act_script": hurried, "judge_reset": lenient},
            Kind.WRONG_CLEAN,
        ),
        ({"make_plan": kills_the_spared}, Kind.KILLED),
        ({"make_plan": kills_in_jobs}, Kind.KILLED),
        ({"make_plan": crashes}, Kind.TRACEBACK),
        ({"judge_reset": silent}, Kind.NO_VERDICT),
    ],
    ids=lambda value: (
        "+".join(f.__name__ for f in value.values()) if isinstance(value, dict) else ""
    ),
)
def test_a_sabotaged_product_is_found_out(
    what: dict[str, Sabotage], kind: Kind, chaos_fleet: SimFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.quicken()
    for name, sabotage in what.items():
        monkeypatch.setattr(ROUND, name, sabotage(getattr(ROUND, name)))
    [node] = chaos_fleet

    found = set()
    for seed in range(ENOUGH):
        found |= {violation.kind for violation in play_round(chaos_fleet, node, seed).violations}
        if kind in found:
            return
    pytest.fail(f"{kind} was not found in {ENOUGH} rounds, but {found}")
