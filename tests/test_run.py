"""A run over many nodes: exactly one report each, bounded, and stoppable in two stages."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.errors import UsageError
from gpufleet.model import NodeReport, RunReport, Verdict
from gpufleet.observation import Observation, parse_observation
from gpufleet.policy import Access, NodeSpec, Policy
from gpufleet.reset import Resetting
from gpufleet.run import Interrupt, Progress, new_run_id, run_nodes
from gpufleet.run.origin import here
from gpufleet.transport import Answer, Script, Section


def specs(count: int, **policy: float) -> list[NodeSpec]:
    settings = Policy(**policy)  # type: ignore[arg-type]  # seconds only
    return [NodeSpec(f"n{i}", Access(f"192.0.2.{i}"), settings) for i in range(1, count + 1)]


def clean(spec: NodeSpec) -> NodeReport:
    return NodeReport(spec.name, spec.access.address, Verdict.CLEAN)


def test_reports_come_in_the_order_of_the_selection() -> None:
    def slow_first(spec: NodeSpec) -> NodeReport:
        time.sleep(0.05 if spec.name == "n1" else 0)
        return clean(spec)

    reports = run_nodes(specs(5), slow_first, Interrupt())

    assert [report.host for report in reports] == ["n1", "n2", "n3", "n4", "n5"]


def test_never_more_than_parallel_nodes_at_once() -> None:
    lock = threading.Lock()
    now, most = 0, 0

    def counting(spec: NodeSpec) -> NodeReport:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1
        return clean(spec)

    reports = run_nodes(specs(30), counting, Interrupt(), parallel=4)

    assert len(reports) == 30
    assert most == 4


def test_a_bug_on_one_node_is_unknown_there_and_costs_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def buggy(spec: NodeSpec) -> NodeReport:
        if spec.name == "n2":
            raise KeyError("oops")
        return clean(spec)

    reports = run_nodes(specs(3), buggy, Interrupt())

    assert [report.verdict for report in reports] == [
        Verdict.CLEAN,
        Verdict.UNKNOWN,
        Verdict.CLEAN,
    ]
    assert reports[1].reason == "internal error: KeyError: 'oops'"
    assert "n2: internal error" in caplog.text


def test_each_report_is_told_once_as_it_comes() -> None:
    told: list[str] = []

    run_nodes(
        specs(6), clean, Interrupt(), progress=Progress(on_report=lambda r: told.append(r.host))
    )

    assert sorted(told) == ["n1", "n2", "n3", "n4", "n5", "n6"]


def test_any_executor_will_do() -> None:
    with ThreadPoolExecutor(2) as executor:
        reports = run_nodes(specs(3), clean, Interrupt(), executor=executor)

        assert executor.submit(int).result() == 0  # not shut down: it isn't ours
    assert len(reports) == 3


def test_an_interrupt_starts_nothing_new_and_names_the_rest_not_started() -> None:
    interrupt = Interrupt()

    def stopping(spec: NodeSpec) -> NodeReport:
        interrupt.stop(signal.SIGTERM)
        return clean(spec)

    reports = run_nodes(specs(4), stopping, interrupt, parallel=1)

    assert [report.verdict for report in reports] == [
        Verdict.CLEAN,
        *[Verdict.NOT_STARTED] * 3,
    ]
    assert reports[3].reason == "interrupted before anything was changed"


def test_an_interrupt_cuts_every_open_connection() -> None:
    class Recorded:
        closed = False

        def run(self, script: Script, *, timeout_s: float, beat: object = None) -> Answer:
            raise AssertionError

        def close(self) -> None:
            self.closed = True

    interrupt = Interrupt()
    before, after = Recorded(), Recorded()
    interrupt.guard(before)

    interrupt.stop()
    interrupt.guard(after)

    assert before.closed
    assert after.closed  # a connection that was just being opened


def test_a_node_that_ignores_the_interrupt_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufleet.run.fanout.WIND_DOWN_S", 0.1)
    interrupt, never = Interrupt(), threading.Event()

    def stuck(spec: NodeSpec) -> NodeReport:
        if spec.name == "n1":
            interrupt.touched.add(spec.name)
        interrupt.stop()
        never.wait(20)
        return clean(spec)

    started = time.monotonic()
    reports = run_nodes(specs(2), stuck, interrupt)
    never.set()

    assert [report.verdict for report in reports] == [Verdict.UNKNOWN, Verdict.NOT_STARTED]
    assert reports[0].reason == "interrupted: state not verified"
    assert time.monotonic() - started < 10


def test_a_node_far_beyond_its_deadline_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufleet.run.fanout._OVERTIME_S", 0.1)
    never = threading.Event()

    def stuck(spec: NodeSpec) -> NodeReport:
        if spec.name == "n1":
            never.wait(20)
        return clean(spec)

    reports = run_nodes(specs(2, timeout_s=0.1, dying_timeout_s=0.1), stuck, Interrupt())
    never.set()

    assert [report.verdict for report in reports] == [Verdict.UNKNOWN, Verdict.CLEAN]
    assert reports[0].reason == "gave no result long after its deadline"


def test_the_same_node_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        run_nodes(specs(1) * 2, clean, Interrupt())


def test_parallel_is_at_least_one() -> None:
    with pytest.raises(UsageError, match="--parallel 0"):
        run_nodes(specs(1), clean, Interrupt(), parallel=0)


def test_no_nodes_are_no_success() -> None:
    assert run_nodes([], clean, Interrupt()) == ()
    assert RunReport("r", "reset", "", "", "", ()).exit_code() == 3


def test_run_ids_sort_by_time_and_differ() -> None:
    assert new_run_id() != new_run_id()
    assert len(new_run_id()) == len("20260131-020000-9f3a1c")


def test_signals_are_put_back_after_a_run() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    run_nodes(specs(1), clean, Interrupt())

    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert after == before


def test_the_runs_own_processes_are_known_where_the_node_is_this_machine() -> None:
    """A runbook in Python that calls gpufleet on its own node must outlive it."""
    mine = here()

    assert {os.getpid(), os.getppid()} <= mine.pids
    assert 1 not in mine.pids
    own = Resetting(here=(mine,))
    observation = observed(boot=mine.boot_id, namespace=mine.pid_namespace)
    assert own.own_pids(observation) == mine.pids
    assert own.own_pids(observed(boot="another", namespace=mine.pid_namespace)) == frozenset()
    assert own.own_pids(observed(boot=mine.boot_id, namespace="pid:[1]")) == frozenset()


def observed(boot: str, namespace: str) -> Observation:
    sections = {
        "self": Section("self", f"boot {boot}\n", "0"),
        "1/memory": Section("1/memory", "", "0"),
        "1/links": Section("1/links", f"self/ns/pid 0 root {namespace}\0", "0"),
    }
    return parse_observation(Answer(sections, started=True, finished=True))
