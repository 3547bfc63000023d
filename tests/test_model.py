"""The exit status of a run: what an unattended caller learns, for every mixture of verdicts."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpufleet.model import (
    CHECK_VERDICTS,
    RESET_VERDICTS,
    STATUS_VERDICTS,
    NodeReport,
    RunReport,
    Verdict,
)

V = Verdict
UNSURE = {V.UNKNOWN, V.UNREACHABLE, V.NOT_STARTED}
FAILED = {V.DIRTY, V.BROKEN}


def report(*verdicts: Verdict, dry_run: bool = False, signal: int | None = None) -> RunReport:
    nodes = tuple(NodeReport(f"n{i}", "192.0.2.1", v) for i, v in enumerate(verdicts))
    return RunReport("id", "reset", "all", "", "", nodes, dry_run, signal)


def mixtures(of: tuple[Verdict, ...]) -> list[tuple[Verdict, ...]]:
    return [some for size in range(1, len(of) + 1) for some in combinations(of, size)]


@pytest.mark.parametrize("verdicts", mixtures(RESET_VERDICTS), ids=" ".join)
def test_every_mixture_of_a_reset_has_its_exit_status(verdicts: tuple[Verdict, ...]) -> None:
    found = set(verdicts)
    skipped = 4 if V.SKIPPED in found else 0
    expected = 3 if found & UNSURE else 1 if found & FAILED else skipped
    assert expected == report(*verdicts).exit_code()
    assert (0 if expected == 4 else expected) == report(*verdicts).exit_code(allow_skipped=True)
    assert expected == report(*reversed(verdicts)).exit_code()


@pytest.mark.parametrize("verdicts", mixtures(RESET_VERDICTS), ids=" ".join)
def test_a_dry_run_says_only_whether_every_plan_is_known(verdicts: tuple[Verdict, ...]) -> None:
    assert (3 if set(verdicts) & UNSURE else 0) == report(*verdicts, dry_run=True).exit_code()


@pytest.mark.parametrize("verdicts", mixtures(STATUS_VERDICTS), ids=" ".join)
def test_a_status_fails_for_broken_and_for_what_it_does_not_know(
    verdicts: tuple[Verdict, ...],
) -> None:
    found = set(verdicts)
    expected = 3 if found & UNSURE else 1 if V.BROKEN in found else 0
    assert expected == report(*verdicts).exit_code()


@pytest.mark.parametrize("verdicts", mixtures(CHECK_VERDICTS), ids=" ".join)
def test_a_check_is_well_when_every_node_is_ready(verdicts: tuple[Verdict, ...]) -> None:
    assert (set(verdicts) == {V.READY}) == (report(*verdicts).exit_code() == 0)


@pytest.mark.parametrize(("signal", "status"), [(1, 129), (2, 130), (15, 143)])
@pytest.mark.parametrize("dry_run", [True, False])
def test_an_interrupt_wins_over_everything(signal: int, status: int, dry_run: bool) -> None:
    for verdicts in ((), (V.CLEAN,), (V.UNKNOWN, V.DIRTY), (V.SKIPPED,)):
        run = report(*verdicts, dry_run=dry_run, signal=signal)
        assert status == run.exit_code(allow_skipped=True)


def test_a_run_without_a_node_is_no_success() -> None:
    assert report().exit_code() == 3
    assert report(dry_run=True).exit_code() == 3


def test_verdicts_are_counted() -> None:
    run = report(V.CLEAN, V.DIRTY, V.CLEAN)
    assert [2, 1, 0] == [run.count(v) for v in (V.CLEAN, V.DIRTY, V.BROKEN)]


def test_verdicts_read_as_their_word() -> None:
    assert ["NOT STARTED", "CLEAN"] == [str(V.NOT_STARTED), f"{V.CLEAN}"]
