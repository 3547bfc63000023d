"""Observations, plan and judgement → the report of a node: all is told, nothing is decided."""

from __future__ import annotations

import pytest

from gpufleet.errors import ConnectionLost, NodeError, ScriptTimeout, Unreachable
from gpufleet.judge import Judgement
from gpufleet.model import Gpu, Verdict
from gpufleet.observation import parse_observation
from gpufleet.plan import make_plan
from gpufleet.policy import Access, NodeSpec, Policy
from gpufleet.report import failed_report, node_report
from gpufleet.transport import Answer
from tests.building import FABRIC_MANAGER, Proc, answer, memory_rows

SPEC = NodeSpec("gpu07", Access("192.0.2.7", port=2222))
DIRTY = Judgement(Verdict.DIRTY, "why", "do this", ("careful",))
BEFORE = parse_observation(answer(memory=memory_rows(9, 5, *[0] * 6)))
AFTER = parse_observation(
    answer([FABRIC_MANAGER, Proc(60, "sglang")], memory="1, [N/A]\n0, 7 MiB\n2, 0 MiB\n", samples=1)
)
PLAN = make_plan(AFTER, Policy())


def test_gpus_are_told_in_order_with_what_they_read_before() -> None:
    report = node_report(SPEC, DIRTY, elapsed_s=1, before=BEFORE, after=AFTER)
    assert (
        Gpu(0, "GPU-0", 9, 7, memory_total_mib=143771),
        Gpu(1, "GPU-1", 5, None, "[N/A]", memory_total_mib=143771),
        Gpu(2, "GPU-2", 0, 0, memory_total_mib=143771),
    ) == report.gpus


def test_a_report_carries_the_judgement_as_it_is() -> None:
    report = node_report(SPEC, DIRTY, elapsed_s=1.23456, after=AFTER, plan=PLAN, attempts=2)
    assert ("gpu07", "192.0.2.7", Verdict.DIRTY, "why", "do this", ("careful",), 2, 1.235) == (
        report.host,
        report.address,
        report.verdict,
        report.reason,
        report.next_step,
        report.warnings,
        report.attempts,
        report.elapsed_s,
    )


@pytest.mark.parametrize("acted", [True, False])
def test_what_the_plan_would_kill_are_survivors_only_after_an_act(acted: bool) -> None:
    report = node_report(SPEC, DIRTY, elapsed_s=1, after=AFTER, plan=PLAN, acted=acted)
    expected = ([60], []) if acted else ([], [60])
    assert expected == ([p.pid for p in report.survivors], [p.pid for p in report.planned])
    assert [50] == [p.pid for p in report.spared]


def test_the_killed_are_told_as_they_were() -> None:
    line = PLAN.kill[0].line("KILL")
    report = node_report(SPEC, DIRTY, elapsed_s=1, after=AFTER, plan=PLAN, killed=[line])
    assert (line,) == report.killed


def test_memory_is_told_of_whoever_it_is_charged_to() -> None:
    apps = "60, 500 MiB, GPU-0\n60, 250 MiB, GPU-1\n50, [N/A], GPU-0\n"
    seen = parse_observation(answer([FABRIC_MANAGER, Proc(60, "sglang")], apps=apps, samples=1))
    plan = make_plan(seen, Policy())
    killed = [plan.kill[0].line("KILL")]

    report = node_report(SPEC, DIRTY, elapsed_s=1, after=seen, plan=plan, killed=killed)
    gone = node_report(SPEC, DIRTY, elapsed_s=1, before=seen, after=AFTER, killed=killed)

    assert [750] == [line.memory_mib for line in report.planned]
    assert [750] == [line.memory_mib for line in report.killed]
    assert [None] == [line.memory_mib for line in report.spared]
    assert [750] == [line.memory_mib for line in gone.killed]


def test_without_a_reading_there_are_no_gpus() -> None:
    nothing = parse_observation(Answer({}, started=True, finished=True))
    assert () == node_report(SPEC, DIRTY, elapsed_s=1, after=nothing, before=BEFORE).gpus
    assert () == node_report(SPEC, DIRTY, elapsed_s=1).gpus


def test_an_unreachable_node_says_at_which_stage() -> None:
    error = Unreachable("host-key", "host key changed", next_step="ssh-keygen -R gpu07")
    report = failed_report(SPEC, error, elapsed_s=0.5)
    assert (Verdict.UNREACHABLE, "host-key", "host key changed", "ssh-keygen -R gpu07") == (
        report.verdict,
        report.stage,
        report.reason,
        report.next_step,
    )


@pytest.mark.parametrize("error", [ConnectionLost("gone"), ScriptTimeout("late")])
def test_a_node_that_was_reached_and_lost_is_unknown(error: NodeError) -> None:
    report = failed_report(SPEC, error, elapsed_s=0.5)
    assert (Verdict.UNKNOWN, "", error.reason) == (report.verdict, report.stage, report.reason)


def test_every_failed_report_has_a_next_step() -> None:
    report = failed_report(SPEC, ConnectionLost("gone"), elapsed_s=0)
    assert "ssh -p 2222 root@192.0.2.7 true" == report.next_step
