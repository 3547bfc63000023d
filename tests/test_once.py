"""An act that is asked for twice is done once: the node refuses the second, and says what came of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.model import NodeReport, Verdict
from gpufleet.node import act_name, act_script
from gpufleet.observation.act import Again, parse_again
from gpufleet.policy import Limits, Policy
from gpufleet.reset import Resetting, reset_node
from gpufleet.ssh import connect
from tests.conftest import QUICK, spec_of
from tests.simfleet import IDLE, SGLANG, Proc, RunningProcess, SimFleet, SimNode
from tests.test_node_scripts import SHELLS, answered

JOB = Proc("job", ("python3", "a.py"), memory={0: 100})
SLOW = Proc("slow", ("python3", "slow.py"), memory={0: 1000}, lag=4)
SERVER = tuple(proc for proc in SGLANG if proc not in IDLE)
"""Without the daemons: a server that its owner has started again."""


@pytest.fixture(autouse=True)
def _forgotten(fleet: SimFleet) -> Iterator[None]:
    for node in fleet:
        node.exec("rm -rf /run/gpufleet/acts")
    yield
    for node in fleet:
        node.exec("rm -rf /run/gpufleet/acts")


def acts(node: SimNode) -> Path:
    return node.path("/run/gpufleet/acts")


def act_of(proc: RunningProcess, name: str, *, keep: bool) -> object:
    policy = Policy(limits=Limits(still_s=1))
    kill = [(proc.pid, proc.start_ticks)]
    return act_script(
        policy, kill=kill, lock="t", budget_s=9, dying_budget_s=9, name=name, keep=keep
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_the_second_act_gets_what_came_of_the_first_and_kills_nobody(
    shell: str, node: SimNode
) -> None:
    (first,) = node.start((JOB,))
    seen = answered(node, shell, act_of(first, "r1.1", keep=True))  # type: ignore[arg-type]
    (second,) = node.start((JOB,))

    again = answered(node, shell, act_of(second, "r1.1", keep=True))  # type: ignore[arg-type]

    assert not node.alive(first)
    assert node.alive(second)
    assert seen.again is None
    assert again.again is not None
    assert again.again.done
    assert replace(again, again=None) == seen  # byte for byte what the first one saw
    assert seen.act is not None
    assert set(seen.act.signals) == {(first.pid, first.start_ticks)}


@pytest.mark.parametrize("shell", SHELLS)
def test_of_a_first_without_a_result_only_a_look_comes(shell: str, node: SimNode) -> None:
    """Its connection went, or its answer was too large to keep: what it did isn't known."""
    (first,) = node.start((JOB,))
    answered(node, shell, act_of(first, "r1.1", keep=False))  # type: ignore[arg-type]
    (second,) = node.start((JOB,))

    again = answered(node, shell, act_of(second, "r1.1", keep=True))  # type: ignore[arg-type]

    assert node.alive(second)
    assert again.again is not None
    assert not again.again.done
    assert again.act is not None
    assert again.act.signals == {}
    assert again.last.memory.used_mib()[0] == 100  # it is seen as it is now
    assert second.pid in again.last.processes


@pytest.mark.parametrize("shell", SHELLS)
def test_other_acts_and_other_runs_are_done(shell: str, node: SimNode) -> None:
    for name in ("r1.1", "r1.2", "r2.1", ""):
        (proc,) = node.start((JOB,))
        seen = answered(node, shell, act_of(proc, name, keep=True))  # type: ignore[arg-type]
        assert seen.again is None, name
        assert not node.alive(proc), name


def test_what_is_kept_is_bounded_and_closed_to_others(node: SimNode) -> None:
    (proc,) = node.start((JOB,))
    acts(node).mkdir(mode=0o700, parents=True)
    for number in range(100):
        (acts(node) / f"r0-{number:03}.1").write_text("1\n")
        (acts(node) / f"r0-{number:03}.1.said").write_text("token\n")

    answered(node, "sh", act_of(proc, "a-early-name.1", keep=True))  # type: ignore[arg-type]

    left = sorted(path.name for path in acts(node).iterdir())
    assert len(left) <= 66
    assert "a-early-name.1" in left  # its own stays, however it sorts
    assert "r0-099.1" in left
    assert "r0-000.1" not in left
    assert len([name for name in left if name.endswith(".said")]) <= 9
    assert acts(node).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in acts(node).iterdir()} <= {0, 0o044}


def test_an_act_that_could_not_be_noted_has_not_begun(node: SimNode) -> None:
    (job,) = node.start((JOB,))
    folder = "/run/gpufleet/acts"
    node.exec(f"mkdir -p {folder}; chmod 700 {folder}/.. {folder}")
    node.exec(f"mount -t tmpfs -o size=4k,mode=700 none {folder}")
    try:
        node.exec(f"head -c 4096 /dev/zero >{folder}/fill")
        full = answered(node, "sh", act_of(job, "r1.1", keep=False))  # type: ignore[arg-type]
        assert node.alive(job)
        node.exec(f"rm {folder}/fill")
        freed = answered(node, "sh", act_of(job, "r1.1", keep=False))  # type: ignore[arg-type]
    finally:
        node.exec(f"umount {folder}")

    assert "disk full or read-only?" in full.failure
    assert freed.again is None
    assert not node.alive(job)


def test_an_answer_that_is_too_large_is_not_kept(node: SimNode) -> None:
    node.start(tuple(Proc(f"huge{n}", ("sleeper", "x" * 120_000)) for n in range(10)))
    (proc,) = node.start((JOB,))

    seen = answered(node, "sh", act_of(proc, "r1.1", keep=True))  # type: ignore[arg-type]

    assert len(seen.samples) == 2  # whole all the same
    assert [path.name for path in acts(node).iterdir()] == ["r1.1"]


@pytest.mark.parametrize(
    ("run_id", "expected"),
    [
        ("20260131-020000-9f3a1c", "20260131-020000-9f3a1c.1"),
        ("", ""),
        ("night.1", None),
        ("../../etc/passwd", None),
        (".", None),
        ("-rf", None),
        ("a b;c", None),
        ("ü" * 400, None),
        ("\udcff", None),
    ],
)
def test_a_name_is_a_plain_file_name_whatever_the_run_is_called(
    run_id: str, expected: str | None
) -> None:
    name = act_name(run_id, "1")

    if expected is None:
        assert len(name) == 66
        assert name.isalnum() or name.replace(".", "").isalnum()
        assert name != act_name(run_id + "x", "1")
    else:
        assert name == expected


def test_a_word_that_is_not_understood_is_no_result() -> None:
    assert parse_again("") is None
    assert parse_again("done 250\n") == Again(done=True, since_s=2.5)
    assert parse_again("begun 10\n") == Again(done=False, since_s=0.1)
    assert parse_again("done\n") == Again(done=False, since_s=0)


# --- the whole loop, over SSH --------------------------------------------------------------------


def reset(
    fleet: SimFleet, node: SimNode, run_id: str, *, repeatable: bool = True, still_s: float = 1.5
) -> NodeReport:
    limits = replace(QUICK, still_s=still_s)
    spec = spec_of(fleet, node, Policy(limits=limits, timeout_s=30, dying_timeout_s=30))
    run = Resetting(run_id, "tests", repeatable=repeatable)
    return reset_node(spec, lambda: connect(spec), run)


def workload(procs: list[RunningProcess]) -> list[RunningProcess]:
    return [proc for proc in procs if "sglang" in proc.label or "scheduler" in proc.label]


def test_a_task_that_is_run_twice_kills_once(fleet: SimFleet, node: SimNode) -> None:
    """The owner has started the server again by the time the engine repeats the task."""
    old = node.start(SGLANG)
    first = reset(fleet, node, "r1")
    new = node.start(SERVER)

    second = reset(fleet, node, "r1")

    assert (first.verdict, second.verdict) == (Verdict.CLEAN, Verdict.CLEAN)
    assert not any(node.alive(proc) for proc in workload(old))
    assert all(node.alive(proc) for proc in new)
    assert [gpu.memory_used_mib for gpu in second.gpus] == [0] * 8  # as the first one proved
    [warning] = [line for line in second.warnings if "another worker" in line]
    assert warning.startswith("another worker of this run began act 1 ")
    assert warning.endswith(f"signalled {len(first.killed)}: that act's result is told here")
    assert second.killed == ()


def test_a_task_whose_first_was_lost_in_mid_act_kills_nobody(
    fleet: SimFleet, node: SimNode
) -> None:
    old = node.start(SGLANG)
    reset(fleet, node, "r1", repeatable=False)  # keeps no result
    new = node.start(SERVER)

    second = reset(fleet, node, "r1")

    assert not any(node.alive(proc) for proc in workload(old))
    assert all(node.alive(proc) for proc in new)
    assert second.verdict is Verdict.DIRTY
    assert second.attempts == 1
    assert second.killed == ()
    assert any("and was lost: nothing was killed again" in line for line in second.warnings)


def test_another_run_acts_as_ever(fleet: SimFleet, node: SimNode) -> None:
    node.start(SGLANG)
    reset(fleet, node, "r1")
    new = node.start(SERVER)

    report = reset(fleet, node, "r2")

    assert report.verdict is Verdict.CLEAN
    assert not any(node.alive(proc) for proc in workload(new))
    assert not [line for line in report.warnings if "another worker" in line]


def test_two_at_once_share_one_act(fleet: SimFleet, node: SimNode) -> None:
    """An engine took a worker for dead that lives on: both wait for the same act."""
    node.start((*SGLANG, SLOW))
    reports: list[NodeReport] = []
    threads = [
        threading.Thread(target=lambda: reports.append(reset(fleet, node, "r1", still_s=15)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [report.verdict for report in reports] == [Verdict.CLEAN] * 2, reports
    told = [any("another worker" in line for line in report.warnings) for report in reports]
    assert sorted(told) == [False, True]
    assert len({tuple(line.pid for line in report.killed) for report in reports}) == 1
    assert [path.name for path in acts(node).glob("r1.*[0-9]")] == ["r1.1"]
