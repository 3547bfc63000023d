"""Batches, canaries and thresholds: what starts when, and what stays untouched."""

from __future__ import annotations

import threading
import time

import pytest

from gpufleet.errors import UsageError
from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import Access, NodeSpec
from gpufleet.run import Interrupt, run_nodes
from gpufleet.run.rolling import Rolling, Share, parse_rolling
from tests.conftest import command_for
from tests.simfleet import SGLANG, SimFleet


def specs(count: int) -> list[NodeSpec]:
    return [NodeSpec(f"n{i:02d}", Access(f"192.0.2.{i}")) for i in range(1, count + 1)]


class Crew:
    """Work that notes who started when who was done; nodes in `ill` end with that verdict."""

    def __init__(self, ill: dict[str, Verdict] | None = None, pause_s: float = 0.0) -> None:
        self.ill = ill or {}
        self.pause_s = pause_s
        self.done: set[str] = set()
        self.done_before: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, spec: NodeSpec) -> NodeReport:
        with self._lock:
            self.done_before[spec.name] = frozenset(self.done)
        time.sleep(self.pause_s)
        with self._lock:
            self.done.add(spec.name)
        return NodeReport(spec.name, "", self.ill.get(spec.name, Verdict.CLEAN))

    def started(self) -> list[str]:
        return sorted(self.done_before)


def names(reports: tuple[NodeReport, ...], verdict: Verdict) -> list[str]:
    return [report.host for report in reports if report.verdict is verdict]


@pytest.mark.parametrize(
    ("batch", "canary", "count", "sizes"),
    [
        (None, 0, 5, [5]),
        ("2", 0, 5, [2, 2, 1]),
        ("25%", 0, 5, [2, 2, 1]),  # rounded up
        ("1%", 0, 3, [1, 1, 1]),
        ("100%", 0, 3, [3]),
        ("9", 0, 3, [3]),
        (None, 1, 5, [1, 4]),
        ("3", 2, 8, [2, 3, 3]),
        ("50%", 1, 4, [1, 2, 1]),  # of the whole selection
        ("2", 9, 4, [4]),
    ],
)
def test_the_sizes_of_batches(batch: str | None, canary: int, count: int, sizes: list[int]) -> None:
    assert sizes == parse_rolling(batch, None, canary).batches(count)


@pytest.mark.parametrize(
    ("limit", "count", "allowed"),
    [
        ("0", 20, 0),
        ("2", 20, 2),
        ("0%", 20, 0),
        ("10%", 20, 2),
        ("10%", 19, 1),  # two are 10.5%
        ("10%", 5, 0),  # one is 20%
        ("33%", 3, 0),  # one is 33.3%
        ("34%", 3, 1),
        ("100%", 3, 3),
    ],
)
def test_max_failures_is_exact_at_the_edge(limit: str, count: int, allowed: int) -> None:
    rolling = parse_rolling(max_failures=limit)

    def stopped(failures: int) -> bool:
        ill = [NodeReport(f"n{i}", "", Verdict.DIRTY) for i in range(failures)]
        return bool(rolling.verdict(ill, count))

    assert not stopped(allowed)
    assert stopped(allowed + 1)


def test_what_counts_as_a_failure() -> None:
    rolling = parse_rolling(max_failures=0)
    counted = {v for v in Verdict if rolling.verdict([NodeReport("n1", "", v)], 9)}

    assert {Verdict.DIRTY, Verdict.BROKEN, Verdict.UNKNOWN, Verdict.UNREACHABLE} == counted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": "0"}, "--batch 0: at least one node"),
        ({"batch": "0%"}, "--batch 0%: at least one node"),
        ({"batch": "x"}, '--batch: read "x": a number of nodes or a percentage'),
        ({"batch": "-1"}, '--batch: read "-1"'),
        ({"batch": "2.5"}, '--batch: read "2.5"'),
        ({"max_failures": "101%"}, '--max-failures: read "101%"'),
        ({"max_failures": ""}, '--max-failures: read ""'),
        ({"canary": -1}, "--canary -1"),
    ],
)
def test_what_is_no_number_of_nodes_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rolling(**options)  # type: ignore[arg-type]  # one of three
    assert str(caught.value).startswith(message)


def test_a_batch_starts_when_the_former_is_done() -> None:
    crew = Crew(pause_s=0.02)

    run_nodes(specs(7), crew, Interrupt(), rolling=Rolling(batch=Share(3)))

    first = {"n01", "n02", "n03"}
    assert all(crew.done_before[name] <= first for name in first)
    assert all(first <= crew.done_before[f"n0{i}"] for i in (4, 5, 6))
    assert crew.done_before["n07"] == {f"n0{i}" for i in range(1, 7)}


def test_parallel_still_bounds_a_batch() -> None:
    crew = Crew()

    run_nodes(specs(6), crew, Interrupt(), parallel=1, rolling=Rolling(batch=Share(3)))

    assert [len(crew.done_before[name]) for name in crew.started()] == [0, 1, 2, 3, 4, 5]


def test_too_many_failures_stop_what_has_not_started() -> None:
    crew = Crew({"n02": Verdict.DIRTY, "n03": Verdict.UNREACHABLE})

    reports = run_nodes(
        specs(9), crew, Interrupt(), rolling=Rolling(batch=Share(3), max_failures=Share(1))
    )

    assert crew.started() == ["n01", "n02", "n03"]
    assert names(reports, Verdict.NOT_STARTED) == [f"n0{i}" for i in range(4, 10)]
    # Told in the order in which they failed, which is a race.
    assert reports[8].reason in {
        f"2 failures ({failed}) are more than --max-failures 1"
        for failed in ("n02, n03", "n03, n02")
    }
    assert reports[8].next_step == "gpufleet reset --hosts n09"


def test_within_a_batch_nothing_more_starts_either() -> None:
    crew = Crew({"n02": Verdict.BROKEN})

    reports = run_nodes(
        specs(5), crew, Interrupt(), parallel=1, rolling=Rolling(max_failures=Share(0))
    )

    assert crew.started() == ["n01", "n02"]
    assert reports[4].reason == "1 failure (n02) is more than --max-failures 0"


def test_exactly_as_many_failures_as_allowed_stop_nothing() -> None:
    crew = Crew({"n01": Verdict.DIRTY, "n02": Verdict.UNKNOWN, "n04": Verdict.SKIPPED})

    run_nodes(specs(9), crew, Interrupt(), rolling=Rolling(Share(1), Share(2)))

    assert len(crew.started()) == 9


@pytest.mark.parametrize("verdict", [Verdict.DIRTY, Verdict.SKIPPED, Verdict.UNREACHABLE])
def test_a_canary_that_is_not_clean_leaves_the_others_alone(verdict: Verdict) -> None:
    crew = Crew({"n02": verdict})

    reports = run_nodes(specs(6), crew, Interrupt(), rolling=Rolling(canary=2))

    assert crew.started() == ["n01", "n02"]
    assert names(reports, Verdict.NOT_STARTED) == ["n03", "n04", "n05", "n06"]
    assert reports[2].reason == f"canary n02 is {verdict}"


def test_clean_canaries_let_the_others_go() -> None:
    crew = Crew(pause_s=0.01)

    reports = run_nodes(specs(5), crew, Interrupt(), rolling=Rolling(canary=2))

    assert len(names(reports, Verdict.CLEAN)) == 5
    assert all({"n01", "n02"} <= crew.done_before[name] for name in ("n03", "n04", "n05"))


def test_an_interrupt_between_batches_is_told_as_such() -> None:
    interrupt = Interrupt()

    def stopping(spec: NodeSpec) -> NodeReport:
        interrupt.stop()
        return NodeReport(spec.name, "", Verdict.DIRTY)

    reports = run_nodes(
        specs(3), stopping, interrupt, rolling=Rolling(batch=Share(1), max_failures=Share(0))
    )

    assert reports[2].reason == "interrupted before anything was changed"


def test_twenty_nodes_in_batches_with_two_failing_ones() -> None:
    """Two failures are allowed by --max-failures 2; by 1 the second one stops the rest. What failed is
    reset once more by @failed, when it is mended."""
    with SimFleet(20) as many:
        for name in ("gpu01", "gpu02", "gpu06", "gpu20"):
            many[name].start(SGLANG)
        many["gpu03"].stop_sshd()
        many["gpu07"].fault("missing5", "")
        run = command_for({"GPUFLEET_INVENTORY": str(many.fleet_yaml)})
        rolling = ("reset", "--hosts", "inference-pool", "--json", "--batch", "5")

        through = run(*rolling, "--max-failures", "2")
        many["gpu03"].start_sshd()
        many["gpu07"].clear_fault("missing5")
        again = run("reset", "--hosts", "@failed", "--json")
        many["gpu03"].stop_sshd()
        many["gpu07"].fault("missing5", "")
        many["gpu20"].start(SGLANG)
        stopped = run(*rolling, "--max-failures", "1")
        canary = run(*rolling, "--canary", "3")
        left = [p for p in many["gpu20"].processes() if b"sglang" in b" ".join(p.args)]

    assert through.code == 3
    assert through.json["summary"] == {
        **dict.fromkeys(["DIRTY", "UNKNOWN", "SKIPPED", "NOT STARTED"], 0),
        "CLEAN": 18,
        "BROKEN": 1,
        "UNREACHABLE": 1,
    }
    assert len(through.nodes()["gpu20"]["killed"]) == 10
    assert {n: node["verdict"] for n, node in again.nodes().items()} == {
        "gpu03": "CLEAN",
        "gpu07": "CLEAN",
    }
    assert again.code == 0
    assert stopped.json["summary"]["NOT STARTED"] == 10
    assert stopped.code == 3
    nodes = stopped.nodes()
    assert {nodes[f"gpu{i}"]["verdict"] for i in range(11, 21)} == {"NOT STARTED"}
    reason = "2 failures (gpu03, gpu07) are more than --max-failures 1"
    assert nodes["gpu20"]["reason"] == reason
    assert nodes["gpu20"]["next_step"] == "gpufleet reset --hosts gpu20"
    assert canary.json["summary"]["NOT STARTED"] == 17
    assert canary.nodes()["gpu04"]["reason"] == "canary gpu03 is UNREACHABLE"
    assert left  # not touched by a run that stopped before it
