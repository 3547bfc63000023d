"""GPU reset and reboot, against stand-ins: whatever fails, what was stopped runs again or is told."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet import run
from gpufleet.model import NodeReport, Verdict
from gpufleet.observation import Observation
from gpufleet.policy import Hooks, Policy
from gpufleet.reset import Here, Resetting, escalation, reset_node, restore_node
from gpufleet.run import new_run_id
from gpufleet.ssh import connect
from gpufleet.ssh.knownhosts import known_hosts
from tests.conftest import QUICK, Command, spec_of
from tests.rungs import RESET, STARTS, STEPS, STOPS, UNITS, Rig
from tests.simfleet import Proc, SimFleet, SimFleetError, SimNode, scenes
from tests.test_schema import validate

LIMITS = replace(QUICK, daemon_s=3, gpu_reset_s=2, ready_s=1, pause_s=0.2, tool_s=5)
WANTS = ("gpu_recovery_action@3", "Reset")

Escalate = Callable[..., NodeReport]


@pytest.fixture
def rig(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(node)
    monkeypatch.setattr(Observation, "on_host", True)
    monkeypatch.setattr("gpufleet.node.STAYS_UP_S", 0.1)
    yield rig
    rig.close()


@pytest.fixture
def escalate(fleet: SimFleet, node: SimNode, rig: Rig) -> Escalate:
    """Reset gpu01 with quick limits: the highest rung, fields of Policy, and what a run hands over."""

    def go(rung: str = "gpu-reset", hooks: Hooks | None = None, **options: Any) -> NodeReport:
        names = ("agreed", "here", "turn", "dry_run", "interrupted")
        given = {name: options.pop(name) for name in names if name in options}
        settings = {"limits": LIMITS, "timeout_s": 20, "dying_timeout_s": 20, "escalate": rung}
        spec = spec_of(fleet, node, Policy(**{"reboot_timeout_s": 20, **settings, **options}))
        spec = replace(spec, hooks=hooks or Hooks())
        return reset_node(spec, lambda: connect(spec), Resetting(new_run_id(), "tests", **given))

    return go


def restore(fleet: SimFleet, node: SimNode) -> NodeReport:
    spec = spec_of(fleet, node)
    return restore_node(spec, lambda: connect(spec), "run r by tests")


def rungs(report: NodeReport) -> list[tuple[str, str]]:
    return [(one.rung, one.done) for one in report.escalations]


# A GPU reset


def test_a_gpu_that_wants_a_reset_gets_it_in_the_documented_order(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)

    report = escalate()

    assert report.verdict is Verdict.CLEAN, report
    assert rig.calls() == list(STEPS)
    assert rungs(report) == [("gpu-reset", "yes")]
    assert report.escalations[0].why == "GPU 3 wants recovery action 'Reset'"
    assert [(s.owner, s.stopped, s.restored) for s in report.stopped] == [
        (unit, "yes", "yes") for unit in UNITS
    ]
    assert report.warnings == ("GPU reset (yes): GPU 3 wants recovery action 'Reset'",)
    told = [moment.detail for moment in report.timeline if moment.phase == "gpu-reset"]
    assert [t for t in told if t.startswith(("stop", "nvidia", "start"))] == [
        *(f"stop {unit}" for unit in UNITS),
        "nvidia-smi --gpu-reset",
        *(f"starting {unit}" for unit in reversed(UNITS)),
    ]
    assert (rig.written(), rig.down()) == ([], [])


def test_never_by_default(node: SimNode, rig: Rig, escalate: Escalate) -> None:
    node.fault(*WANTS)

    report = escalate("none")

    assert (report.verdict, report.escalations, rig.calls()) == (Verdict.BROKEN, (), [])


def test_a_clean_node_is_left_alone(rig: Rig, escalate: Escalate) -> None:
    report = escalate("reboot")

    assert (report.verdict, report.escalations, rig.calls()) == (Verdict.CLEAN, (), [])


def test_memory_held_by_nobody_is_cured(node: SimNode, rig: Rig, escalate: Escalate) -> None:
    node.start((Proc("job", ("python3", "-m", "sglang.launch_server"), memory={0: 900}),))
    node.fault("stuck2", 61_000)

    report = escalate()

    assert report.verdict is Verdict.CLEAN, report
    assert [line.signal for line in report.killed] == ["KILL"]
    assert report.escalations[0].why.startswith("GPU 2: 61000 MiB, held by nobody and unchanged")
    assert rig.calls() == list(STEPS)


def test_a_dry_run_says_what_it_would_do_and_does_nothing(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    node.start(scenes.GPU_DAEMONS)

    report = escalate(dry_run=True)

    [rung] = report.escalations
    assert (rung.rung, rung.done) == ("gpu-reset", "")
    assert list(rung.steps) == [step.replace(" -- ", " ") for step in STEPS]
    assert rig.calls() == []


def test_a_dry_run_tells_of_the_rung_beyond_the_kill(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    node.start((Proc("job", ("python3", "-m", "sglang.launch_server"), memory={0: 900}),))

    report = escalate(dry_run=True)

    assert rungs(report) == [("gpu-reset", "")]
    assert rig.calls() == []


def test_what_does_not_run_is_neither_stopped_nor_started(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    rig.write(f"/run/units/{UNITS[0]}", "inactive")

    report = escalate()

    assert report.verdict is Verdict.CLEAN, report
    assert rig.calls() == [*STOPS[1:], RESET, *STARTS[:-1]]


def test_persistence_mode_without_its_daemon_is_put_back(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    node.fault("persistence_mode@5", "Disabled", when="index,persistence_mode")
    rig.write(f"/run/units/{UNITS[1]}", "inactive")

    report = escalate()

    assert report.verdict is Verdict.CLEAN, report
    on = "0,1,2,3,4,6,7"
    assert rig.calls()[2:5] == [f"nvidia-smi -i {on} -pm 0", RESET, f"nvidia-smi -i {on} -pm 1"]


def test_a_gpu_beyond_saying_its_persistence_mode_gets_that_of_the_others(
    fleet: SimFleet, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    node.fault("persistence_mode@3", "[GPU requires reset]", when="index,persistence_mode")
    node.fault("persistence_mode@5", "Disabled", when="index,persistence_mode")
    rig.write(f"/run/units/{UNITS[1]}", "inactive")
    on = "0,1,2,3,4,6,7"
    rig.trouble("hang", f"nvidia-smi -i {on} -pm 1")

    report = escalate()

    assert rig.calls()[2:5] == [f"nvidia-smi -i {on} -pm 0", RESET, f"nvidia-smi -i {on} -pm 1"]
    assert report.stopped[-1].owner == f"persistence mode of GPU {on}"
    rig.calm()
    assert restore(fleet, node).verdict is Verdict.READY


@pytest.mark.parametrize("kind", ["fail", "hang"])
@pytest.mark.parametrize("step", STEPS)
def test_whatever_step_fails_all_runs_again_or_is_told(
    step: str, kind: str, fleet: SimFleet, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    rig.trouble(kind, step)

    report = escalate()

    down = rig.down()
    assert rig.written() == down
    if step in STARTS:
        assert down == [UNITS[2 - STARTS.index(step)]]
        assert report.verdict is Verdict.BROKEN, report
        assert report.reason.startswith(f"not up again after the GPU reset: {down[0]} (")
        assert report.next_step == "gpufleet restore --hosts gpu01"
        rig.calm()
        assert restore(fleet, node).verdict is Verdict.READY
        assert (rig.down(), rig.written()) == ([], [])
    else:
        assert down == []
        assert report.verdict is Verdict.BROKEN, report
        assert report.reason.startswith("GPU reset: ")
        assert "GPU 3 wants recovery action 'Reset'" in report.reason
        assert (RESET in rig.calls()) == (step == RESET)
    assert len(report.escalations) == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_script_that_is_killed_in_its_midst_loses_nothing(
    step: str, fleet: SimFleet, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    """Not even its trap runs: what it stopped stands in the file, and the same reset starts it."""
    node.fault(*WANTS)
    rig.trouble("kill", step)
    threading.Timer(0, lambda: (rig.await_call(step), rig.calm())).start()

    report = escalate()

    assert (rig.down(), rig.written()) == ([], [])
    assert report.verdict in {Verdict.BROKEN, Verdict.CLEAN}, report
    assert rungs(report)[0][1].startswith("not confirmed: ")
    assert restore(fleet, node).stopped == ()


@pytest.mark.parametrize("step", STEPS)
def test_a_lost_connection_leaves_all_running(
    step: str, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    """Nothing is started in the midst of a reset, and none begins when nobody listens any more."""
    node.fault(*WANTS)
    rig.trouble("wait", step)
    before: list[str] = []

    def drop() -> None:
        rig.await_call(step)
        node.drop_connections()
        time.sleep(1.5)  # longer than a heartbeat
        before.extend(rig.calls())
        rig.calm()

    threading.Timer(0, drop).start()
    report = escalate(limits=replace(LIMITS, gpu_reset_s=20, daemon_s=20))

    assert (rig.down(), rig.written()) == ([], [])
    assert before[-1] == step
    assert report.verdict in {Verdict.BROKEN, Verdict.CLEAN}, report
    assert (RESET in rig.calls()) == (step not in STOPS)


@pytest.mark.parametrize("step", [STOPS[1], RESET, STARTS[1]])
def test_a_gpufleet_that_is_killed_loses_nothing(
    step: str, fleet: SimFleet, node: SimNode, rig: Rig, tmp_path: Path
) -> None:
    """The node's own script puts back what it stopped; where that was killed as well, restore does."""
    node.fault(*WANTS)
    rig.trouble("wait", step)
    with running(fleet, tmp_path, "reset", "-H", "gpu01", "--escalate", "gpu-reset") as process:
        rig.await_call(step)
        process.send_signal(signal.SIGKILL)
    rig.calm()
    rig.await_that(lambda: not rig.written())

    assert rig.down() == []
    assert (RESET in rig.calls()) == (step != STOPS[1])
    assert restore(fleet, node).verdict is Verdict.READY


@pytest.mark.parametrize("step", STEPS)
def test_restore_finishes_what_both_ends_lost(
    step: str, fleet: SimFleet, node: SimNode, rig: Rig, tmp_path: Path
) -> None:
    node.fault(*WANTS)
    rig.trouble("wait", step)
    with running(fleet, tmp_path, "reset", "-H", "gpu01", "--escalate", "gpu-reset") as process:
        rig.await_call(step)
        node.exec("pkill -KILL -x sh; pkill -KILL -x dash; pkill -KILL -f '^/bin/sh -s'")
        process.send_signal(signal.SIGKILL)
    rig.calm()
    assert rig.written()

    report = restore(fleet, node)

    assert report.verdict is Verdict.READY, report
    assert (rig.down(), rig.written()) == ([], [])


def running(
    fleet: SimFleet,
    folder: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    **streams: int,
) -> subprocess.Popen[str]:
    """The command itself, to which the node's process namespace passes for a machine's."""
    code = "from gpufleet.observation import Observation; Observation.on_host = True\n"
    code += "from gpufleet.__main__ import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=streams.get("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=streams.get("stderr", subprocess.PIPE),
        env={"GPUFLEET_INVENTORY": str(fleet.fleet_yaml), **os.environ, **(env or {})},
        text=True,
        cwd=folder,
    )


def test_a_reset_that_the_driver_refuses_is_told_in_its_words(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    rig.trouble("busy", RESET)

    report = escalate()

    assert report.verdict is Verdict.BROKEN, report
    assert "failed: status 255: " in report.reason
    assert "In use by another client" in report.reason
    assert rig.down() == []


def test_a_reset_that_cures_nothing_is_not_tried_again(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    rig.trouble("vain", RESET)

    report = escalate()

    assert report.verdict is Verdict.BROKEN, report
    assert rig.calls() == list(STEPS)


def test_who_came_to_hold_a_gpu_meanwhile_is_no_reason_to_reset(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    """The look was clear, and a job starts while the daemons are stopped."""
    node.fault(*WANTS)
    rig.trouble("wait", STOPS[-1])

    def come() -> None:
        rig.await_call(STOPS[-1])
        node.start((Proc("late", ("/usr/bin/late",), exe="late", memory={0: 500}),))
        rig.calm()

    threading.Timer(0, come).start()
    report = escalate()

    assert RESET not in rig.calls()
    assert rungs(report)[0][1].endswith("(late) holds a GPU")
    assert rig.down() == []


@pytest.mark.parametrize(
    ("how", "other", "state"),
    [
        ("RequiredBy", "billing.service", "active"),
        ("RequisiteOf", "billing.service", "active"),
        ("BoundBy", "billing.service", "activating"),
        ("ConsistsOf", "scrape.timer", "active"),
        ("PropagatesStopTo", "metrics.socket", "active"),
    ],
)
def test_what_systemd_would_stop_as_well_forbids_it(
    how: str, other: str, state: str, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    rig.write(f"/run/bound/{UNITS[1]}.{how}", f"idle.service {other} {UNITS[0]}")
    rig.write(f"/run/units/{other}", state)

    report = escalate()

    assert rungs(report) == [("gpu-reset", f"no: {other} stops with {UNITS[1]}")]
    assert (rig.calls(), rig.written()) == ([], [])


@pytest.mark.parametrize("billing", ["active", "inactive"])
def test_what_stops_with_a_target_forbids_it_and_a_target_alone_does_not(
    billing: str, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    rig.write(f"/run/bound/{UNITS[1]}.RequiredBy", "gpus.target")
    rig.write("/run/bound/gpus.target.ConsistsOf", f"billing.service {UNITS[1]}")
    rig.write("/run/bound/gpus.target.RequiredBy", "gpus.target")
    rig.write("/run/units/gpus.target", "active")
    rig.write("/run/units/billing.service", billing)

    report = escalate()

    stays = ("gpu-reset", "no: billing.service stops with gpus.target")
    assert rungs(report) == [stays if billing == "active" else ("gpu-reset", "yes")]
    assert rig.calls() == ([] if billing == "active" else list(STEPS))


@pytest.mark.parametrize(
    ("unit", "asked", "said"),
    [
        (UNITS[1], "ActiveState", f"how {UNITS[1]} is"),
        (UNITS[1], "RequiredBy", f"what stops with {UNITS[1]}"),
        ("nvidia-imex.service", "ActiveState", "how nvidia-imex.service is"),
    ],
)
def test_a_systemctl_that_does_not_tell_forbids_it(
    unit: str, asked: str, said: str, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    """A daemon that isn't known to run isn't stopped, and would be reset under its feet."""
    node.fault(*WANTS)
    rig.write(f"/run/mute/{unit}", asked)

    report = escalate()

    assert rungs(report) == [("gpu-reset", f"no: systemctl did not tell {said} (status 0)")]
    assert (rig.calls(), rig.written()) == ([], [])


@pytest.mark.parametrize("state", ["active", "activating"])
def test_a_running_imex_forbids_it(state: str, node: SimNode, rig: Rig, escalate: Escalate) -> None:
    node.fault(*WANTS)
    rig.write("/run/units/nvidia-imex.service", state)

    report = escalate()

    assert rungs(report)[0][1].startswith("no: nvidia-imex runs")
    assert rig.calls() == []


def test_a_daemon_that_is_slow_to_come_up_is_up(
    node: SimNode, rig: Rig, escalate: Escalate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start gave up, or ran out of time; that it became active since is what was wanted."""
    node.fault(*WANTS)
    rig.trouble("slow", STARTS[0])
    monkeypatch.setattr("gpufleet.node.STAYS_UP_S", 3)

    report = escalate()

    assert report.verdict is Verdict.CLEAN, report
    assert (rig.down(), rig.written()) == ([], [])


def test_a_daemon_that_is_no_service_forbids_it(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    node.start((replace(scenes.GPU_DAEMONS[2], owner=scenes.unit("by-hand")),))

    report = escalate()

    assert rungs(report)[0][1].endswith(
        "(nv-hostengine) holds a GPU and is none of the services it stops"
    )
    assert rig.calls() == []


@pytest.mark.parametrize("allowed", ["gpu-reset", "reboot"])
@pytest.mark.parametrize(
    ("broken", "mended", "said"),
    [
        (
            "mkdir -m 700 /var/lib/gpufleet-node; ln -s /dev/full /var/lib/gpufleet-node/stopped.new",
            "true",
            "cannot write /var/lib/gpufleet-node/stopped (disk full or read-only?)",
        ),
        (
            "mount --bind /var/lib /var/lib && mount -o remount,bind,ro /var/lib",
            "umount /var/lib",
            "cannot make /var/lib/gpufleet-node (disk full or read-only?)",
        ),
    ],
    ids=["full", "read-only"],
)
def test_a_full_disk_means_that_nothing_is_stopped(
    broken: str,
    mended: str,
    said: str,
    allowed: str,
    node: SimNode,
    rig: Rig,
    escalate: Escalate,
) -> None:
    """Nor rebooted: a reboot doesn't cure a disk, and such a node may not come back."""
    node.fault(*WANTS)
    assert node.exec(broken).returncode == 0
    try:
        report = escalate(allowed)
    finally:
        node.exec(mended)

    assert report.verdict is Verdict.BROKEN, report
    assert report.reason == f"GPU reset: no: {said}; GPU 3 wants recovery action 'Reset'"
    assert report.next_step.endswith("df -h /var/lib'")
    assert rungs(report) == [("gpu-reset", f"no: {said}")]
    assert rig.calls() == []


def test_daemons_are_other_processes_afterwards_and_that_is_no_fault(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    daemon = scenes.GPU_DAEMONS[1]
    rig.write(f"/run/pids/{UNITS[2]}", str(node.start((daemon,))[0].pid))
    rig.trouble("wait", STARTS[0])

    def come() -> None:
        rig.await_call(STARTS[0])
        node.start((daemon,))
        rig.calm()

    threading.Timer(0, come).start()

    assert escalate().verdict is Verdict.CLEAN


def test_a_fabric_manager_that_is_gone_afterwards_is_a_fault(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    rig.write(f"/run/pids/{UNITS[2]}", str(node.start((scenes.GPU_DAEMONS[1],))[0].pid))

    report = escalate()

    assert report.verdict is Verdict.BROKEN, report
    assert "nv-fabricmanager ran before the GPU reset and doesn't run now" in report.reason


# Not past anybody


@pytest.mark.parametrize("rung", ["gpu-reset", "reboot"])
@pytest.mark.parametrize(
    ("holder", "policy"),
    [
        (Proc("p", ("/opt/bench",), exe="bench", memory={0: 1}), {"protect": ("bench",)}),
        (Proc("a", ("python3", "a.py"), user="alice", memory={0: 1}), {"protect": ("user:alice",)}),
    ],
    ids=["program", "user"],
)
def test_not_past_what_is_protected(
    holder: Proc, policy: dict[str, Any], rung: str, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault("gpu_recovery_action@3", "Reset" if rung == "gpu-reset" else "Reboot")
    node.start((holder,))

    report = escalate(rung, **policy)

    assert report.verdict in {Verdict.BROKEN, Verdict.DIRTY}, report
    assert rig.calls() == []


@pytest.mark.parametrize("owner", ["/system.slice/slurmstepd.scope/job_7/step_0", scenes.POD_SCOPE])
def test_no_reboot_under_a_job_or_a_pod_that_has_no_gpu(
    owner: str, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault("gpu_recovery_action@3", "Reboot")
    node.start((Proc("solver", ("/opt/solver",), exe="solver", user="bob", owner=owner),))

    report = escalate("reboot")

    assert rungs(report)[0][0] == "reboot"
    assert rungs(report)[0][1].endswith("runs here")
    assert rig.calls() == []


def test_not_on_a_skipped_node(node: SimNode, rig: Rig, escalate: Escalate) -> None:
    node.fault(*WANTS)

    report = escalate("reboot", hooks=Hooks(guard="echo in use; exit 1"))

    assert (report.verdict, rig.calls()) == (Verdict.SKIPPED, [])


def test_not_under_another_resets_lock(node: SimNode, rig: Rig, escalate: Escalate) -> None:
    node.fault(*WANTS)
    node.exec("mkdir -m 700 -p /run/gpufleet; echo run other >/run/gpufleet/lock")
    with subprocess.Popen(
        ["nsenter", "-t", str(node.host_pid), "-a", "flock", "/run/gpufleet/lock", "sleep", "60"]
    ) as holder:
        time.sleep(0.3)
        report = escalate()
        holder.kill()
    node.exec("pkill -KILL -x sleep")

    assert report.verdict is Verdict.SKIPPED, report
    assert rungs(report) == [("gpu-reset", "no: another reset holds this node: run other")]
    assert rig.calls() == []


def test_not_from_inside_a_container(
    node: SimNode, rig: Rig, escalate: Escalate, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fault(*WANTS)
    monkeypatch.setattr(Observation, "on_host", False)

    report = escalate("reboot")

    assert rungs(report)[0][1].startswith("no: this login is in a process namespace of its own")
    assert rig.calls() == []


def test_not_where_nobody_was_asked_about_it(node: SimNode, rig: Rig, escalate: Escalate) -> None:
    node.fault(*WANTS)

    report = escalate(agreed=frozenset({"gpu02"}))

    assert rungs(report)[0][1].startswith("no: nobody was asked about it")
    assert rig.calls() == []


def test_not_where_a_gpu_is_missing_as_well(node: SimNode, rig: Rig, escalate: Escalate) -> None:
    """A rung must be able to cure all that is wrong."""
    node.fault(*WANTS)
    node.fault("missing7")

    report = escalate("reboot")

    assert (report.verdict, report.escalations, rig.calls()) == (Verdict.BROKEN, (), [])


def test_before_and_after_run_around_it(node: SimNode, rig: Rig, escalate: Escalate) -> None:
    node.fault(*WANTS)
    hooks = Hooks(
        before="echo before >>/run/calls", after="echo after $GPUFLEET_VERDICT >>/run/calls"
    )

    escalate(hooks=hooks)

    assert rig.calls() == ["before", *STEPS, "after CLEAN"]


def test_an_interrupt_before_it_means_that_nothing_is_done(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)

    report = escalate(interrupted=lambda: True)

    assert rungs(report) == [("gpu-reset", "no: interrupted")]
    assert rig.calls() == []


@pytest.mark.parametrize("step", [STOPS[0], RESET])
def test_an_interrupt_in_its_midst_lets_it_put_all_back(
    step: str, fleet: SimFleet, node: SimNode, rig: Rig, tmp_path: Path
) -> None:
    node.fault(*WANTS)
    rig.trouble("wait", step)
    with running(fleet, tmp_path, "reset", "-H", "gpu01", "--escalate", "gpu-reset") as process:
        rig.await_call(step)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        rig.calm()
        out, _ = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "interrupted after the GPU reset: state not verified" in out
    assert (rig.down(), rig.written()) == ([], [])


# A reboot


REBOOT = ("gpu_recovery_action@3", "Reboot")


def test_a_node_that_wants_a_reboot_is_rebooted_and_proven(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)

    report = escalate("reboot")

    assert report.verdict is Verdict.CLEAN, report
    assert rig.calls() == ["systemctl reboot"]
    assert rungs(report) == [("reboot", "yes")]
    phases = [moment.phase for moment in report.timeline]
    assert phases.index("reboot") < phases.index("boot") < len(phases) - 1


def test_a_gpu_reset_alone_does_not_allow_a_reboot(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)

    report = escalate("gpu-reset")

    assert report.verdict is Verdict.BROKEN, report
    assert rungs(report) == [("reboot", "no: escalate: gpu-reset doesn't allow it")]
    assert rig.calls() == []


def test_a_reset_that_cures_nothing_is_followed_by_the_reboot_that_is_allowed(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    rig.trouble("vain", RESET)

    report = escalate("reboot")

    assert report.verdict is Verdict.CLEAN, report
    assert rig.calls() == [*STEPS, "systemctl reboot"]
    assert rungs(report) == [("gpu-reset", "yes"), ("reboot", "yes")]
    assert len(report.warnings) == 2


def test_what_starts_at_boot_is_killed_as_ever(node: SimNode, rig: Rig, escalate: Escalate) -> None:
    node.fault(*REBOOT)
    rig.write("/run/running", "starting")

    def come() -> None:
        rig.await_that(lambda: node.path("/run/boot_id").read_text().startswith("2"))
        node.start((Proc("job", ("python3", "-m", "sglang.launch_server"), memory={0: 900}),))
        rig.write("/run/running", "running")

    threading.Timer(0, come).start()
    report = escalate("reboot", limits=replace(LIMITS, ready_s=20))

    assert report.verdict is Verdict.CLEAN, report
    assert [line.signal for line in report.killed] == ["KILL"]


def test_a_guard_is_asked_again_before_anything_is_killed_after_a_boot(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)
    rig.write("/run/running", "starting")

    def come() -> None:
        rig.await_that(lambda: node.path("/run/boot_id").read_text().startswith("2"))
        node.start((Proc("job", ("python3", "-m", "sglang.launch_server"), memory={0: 900}),))
        rig.write("/run/running", "running")

    threading.Timer(0, come).start()
    guard = Hooks(guard="grep -q ^1 /run/boot_id")
    report = escalate("reboot", guard, limits=replace(LIMITS, ready_s=20))

    assert (report.verdict, report.killed) == (Verdict.SKIPPED, ()), report


@pytest.mark.parametrize("word", ["starting", "stopping", "unknown"])
def test_a_boot_that_is_never_complete_proves_nothing(
    word: str, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    """Nor one that goes down once more."""
    node.fault(*REBOOT)
    rig.write("/run/running", word)

    report = escalate("reboot")

    assert report.verdict is Verdict.UNKNOWN, report
    assert report.reason.startswith(f"back after a reboot, and still {word}")


def test_a_systemctl_that_hangs_after_a_boot_proves_nothing(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)
    node.exec("mkfifo /run/running")  # nobody writes

    report = escalate("reboot", limits=replace(LIMITS, tool_s=1))

    assert report.verdict is Verdict.UNKNOWN, report
    assert report.reason.startswith("back after a reboot, and still unknown")


def test_a_node_that_comes_back_with_a_gpu_less_is_broken(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)
    rig.write("/run/running", "starting")

    def come() -> None:
        rig.await_that(lambda: node.path("/run/boot_id").read_text().startswith("2"))
        node.fault("missing7")
        rig.write("/run/running", "running")

    threading.Timer(0, come).start()
    report = escalate("reboot", limits=replace(LIMITS, ready_s=5))

    assert report.verdict is Verdict.BROKEN, report
    assert "7 of 8 GPUs reported" in report.reason
    assert rig.calls() == ["systemctl reboot"]


def test_a_connection_that_a_boot_cuts_once_more_is_opened_once_more(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)
    rig.write("/run/running", "starting")
    rig.write("/run/cuts", "")

    report = escalate("reboot", limits=replace(LIMITS, ready_s=20))

    assert report.verdict is Verdict.CLEAN, report
    assert rig.calls() == ["systemctl reboot"]
    assert not node.path("/run/cuts").exists()


def test_a_node_that_does_not_come_back_is_broken(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)
    threading.Timer(0, lambda: (rig.await_call("systemctl reboot"), node.stop_sshd())).start()

    report = escalate("reboot", reboot_timeout_s=2)

    assert report.verdict is Verdict.BROKEN, report
    assert "the node is not back after 2 s: connection refused" in report.reason
    assert report.next_step == "gpufleet status --hosts gpu01  # or its console, over the BMC"
    assert report.gpus == ()


def test_a_node_that_does_not_go_down_is_broken(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)
    rig.write("/run/stays", "")

    report = escalate("reboot", reboot_timeout_s=1)

    assert report.verdict is Verdict.BROKEN, report
    assert "it has not gone down" in report.reason


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_other_commands_are_tried_where_one_fails(
    failing: int, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)
    commands = ["systemctl reboot", "shutdown -r now", "reboot "]
    rig.trouble("fail", *commands[:failing])

    report = escalate("reboot")

    assert rig.calls() == commands[: failing + 1]
    if failing < 3:
        assert report.verdict is Verdict.CLEAN, report
    else:
        assert report.verdict is Verdict.BROKEN, report
        assert report.reason.startswith("reboot: failed: systemctl reboot: stand-in: it failed")


def test_a_host_key_that_changed_with_the_boot_ends_the_wait(
    fleet: SimFleet, node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)
    rig.trouble("wait", "systemctl reboot")

    def forge() -> None:
        rig.await_call("systemctl reboot")
        fleet.forge_host_key("gpu01")
        known_hosts.cache_clear()
        rig.calm()

    threading.Timer(0, forge).start()

    report = escalate("reboot")

    assert report.verdict is Verdict.UNKNOWN, report
    assert report.reason.startswith("rebooted, and since then: ")
    fleet.write_known_hosts()
    known_hosts.cache_clear()


def test_an_unkillable_thread_is_a_reason_to_reboot(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    [job] = node.start((Proc("job", ("python3", "-m", "sglang.launch_server"), memory={0: 900}),))
    try:
        node.freeze(job)
    except SimFleetError as error:
        pytest.skip(str(error))

    def come() -> None:
        rig.await_call("systemctl reboot")
        node.thaw(job)

    threading.Timer(0, come).start()
    report = escalate("reboot", attempts=1, timeout_s=60, dying_timeout_s=60)

    assert report.verdict is Verdict.CLEAN, report
    assert "stays in state D after KILL" in report.escalations[0].why
    assert rig.calls() == ["systemctl reboot"]


def test_gpufleets_own_machine_is_not_rebooted(node: SimNode, rig: Rig, escalate: Escalate) -> None:
    node.fault(*REBOOT)

    report = escalate("reboot", here=(Here(rig.boot_id, "pid:[1]", frozenset()),))

    assert rungs(report) == [("reboot", "no: gpufleet itself runs on this machine")]
    assert rig.calls() == []


def test_an_interrupt_while_it_boots_is_told(
    fleet: SimFleet, node: SimNode, rig: Rig, tmp_path: Path
) -> None:
    node.fault(*REBOOT)
    rig.write("/run/stays", "")
    with running(fleet, tmp_path, "reset", "-H", "gpu01", "--escalate", "reboot") as process:
        rig.await_call("systemctl reboot")
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "interrupted while the node reboots: state not verified" in out
    assert "gpufleet status --hosts gpu01" in out


# With owners that were stopped


_DOCKER = """
id=${4-}; for id in "$@"; do :; done
case "$*" in
  *'status='*) echo "status=$(cat "/run/state.$id")=" ;;
  inspect*) echo "$(cat "/run/state.$id") $(cat "/run/pid.$id") always /c-${id%%${id#?}} image" ;;
  stop*) kill -KILL "$(cat "/run/pid.$id")"; echo exited >"/run/state.$id" ;;
  start*) echo running >"/run/state.$id"; echo "docker $*" >>/run/calls ;;
esac
"""


def contained(rig: Rig, number: str) -> str:
    """The id of a container that runs workload from now on."""
    name = number * 64
    owner = f"/system.slice/docker-{name}.scope"
    [job] = rig.node.start(
        (Proc("job", ("python3", "-m", "sglang.launch_server"), owner=owner, memory={0: 900}),)
    )
    rig.write(f"/run/pid.{name}", str(job.pid))
    rig.write(f"/run/state.{name}", "running")
    return name


def test_what_was_stopped_before_a_rung_is_started_after_it(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    """Other workload comes meanwhile and is stopped as well; neither is forgotten."""
    node.tool("docker", _DOCKER)
    node.fault(*REBOOT)
    first = contained(rig, "a")
    rig.write("/run/running", "starting")
    came: list[str] = []

    def come() -> None:
        rig.await_that(lambda: node.path("/run/boot_id").read_text().startswith("2"))
        came.append(contained(rig, "b"))
        rig.write("/run/running", "running")

    threading.Timer(0, come).start()
    report = escalate(
        "reboot", stop="owner", restart=True, limits=replace(LIMITS, ready_s=20, owner_s=5)
    )

    assert report.verdict is Verdict.CLEAN, report
    assert [(s.owner, s.stopped, s.restored) for s in report.stopped] == [
        ("docker:c-a", "yes", "yes"),
        ("docker:c-b", "yes", "yes"),
    ]
    starts = [call for call in rig.calls() if call.startswith("docker")]
    assert starts == [f"docker start {came[0]}", f"docker start {first}"]
    assert rig.written() == []


# Many nodes, one after the other


@pytest.fixture
def two(fleet: SimFleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rig]]:
    monkeypatch.setattr(Observation, "on_host", True)
    rigs = [Rig(fleet[name]) for name in ("gpu01", "gpu02")]
    for rig in rigs:
        rig.node.fault(*WANTS)
    yield rigs
    for rig in rigs:
        rig.close()


def both(fleet: SimFleet, rigs: list[Rig], **options: Any) -> dict[str, NodeReport]:
    limits = replace(LIMITS, gpu_reset_s=20)
    policy = Policy(limits=limits, timeout_s=20, dying_timeout_s=20, escalate="gpu-reset")
    specs = [spec_of(fleet, rig.node, policy) for rig in rigs]
    return {report.host: report for report in run.reset(specs, **options).nodes}


def test_one_node_at_a_time(fleet: SimFleet, two: list[Rig]) -> None:
    for rig in two:
        rig.trouble("wait", RESET)
    seen: list[int] = []

    def release() -> None:
        for _ in two:
            two[0].await_that(lambda: any(RESET in r.calls() and r not in done for r in two))
            time.sleep(2)
            at_it = [rig for rig in two if RESET in rig.calls() and rig not in done]
            seen.append(len(at_it))
            done.extend(at_it)
            for rig in at_it:
                rig.calm()

    done: list[Rig] = []
    thread = threading.Thread(target=release)
    thread.start()
    reports = both(fleet, two)
    thread.join()

    assert seen == [1, 1]
    assert {report.verdict for report in reports.values()} == {Verdict.CLEAN}
    assert any(m.phase == "turn" for report in reports.values() for m in report.timeline)


def test_a_batch_says_how_many_at_a_time(fleet: SimFleet, two: list[Rig]) -> None:
    for rig in two:
        rig.trouble("wait", RESET)

    def release() -> None:
        for rig in two:
            rig.await_call(RESET)
        for rig in two:
            rig.calm()

    threading.Timer(0, release).start()
    reports = both(fleet, two, batch=2)

    assert {report.verdict for report in reports.values()} == {Verdict.CLEAN}


def test_after_too_many_failures_no_further_node_is_touched(
    fleet: SimFleet, two: list[Rig]
) -> None:
    for rig in two:
        rig.trouble("vain", RESET)

    reports = both(fleet, two, max_failures=0)

    assert sorted(len(rig.calls()) for rig in two) == [0, len(STEPS)]
    left = [report for report in reports.values() if rungs(report) != [("gpu-reset", "yes")]]
    assert "more than --max-failures 0" in left[0].escalations[0].done


# The command line


def test_the_command_tells_it_in_text_json_events_record_and_metrics(
    fleet: SimFleet, node: SimNode, rig: Rig, tmp_path: Path, gpufleet: Command
) -> None:
    node.fault(*WANTS)
    node.start(scenes.GPU_DAEMONS[:1])
    metrics, log = tmp_path / "m.prom", tmp_path / "log"
    arguments = ["reset", "-H", "gpu01", "--escalate", "gpu-reset"]
    dry, _ = running(fleet, tmp_path, *arguments, "--dry-run").communicate(timeout=60)
    files = ["--metrics-file", str(metrics), "--log-file", str(log)]
    rig.write(f"/run/pids/{UNITS[1]}", "1")  # stays: what it holds is told
    out, _ = running(fleet, tmp_path, *arguments, "--json", *files).communicate(timeout=60)
    run_id = json.loads(out)["run_id"]

    assert (
        "would escalate: systemctl stop nvidia-persistenced.service, nvidia-smi --gpu-reset, "
        in dry
    )
    validate(json.loads(out), "run")
    [rung] = json.loads(out)["nodes"][0]["escalations"]
    assert (rung["rung"], rung["why"]) == ("gpu-reset", "GPU 3 wants recovery action 'Reset'")
    assert rung["done"].endswith("(nvidia-persiste) holds a GPU")
    assert 'gpufleet_node_escalated{host="gpu01",rung="reboot"} 0.0' in metrics.read_text()
    assert '"event": "gpu-reset"' in log.read_text()
    assert f"gpu-reset: {rung['done']}" in gpufleet("history", run_id).out
    assert rig.down() == []


def test_a_setting_of_the_file_is_enough_and_the_command_line_takes_it_back(
    fleet: SimFleet, node: SimNode, rig: Rig, tmp_path: Path
) -> None:
    node.fault(*WANTS)
    path = tmp_path / "fleet.yaml"
    path.write_text(
        fleet.fleet_yaml.read_text().replace("defaults:", "defaults:\n  escalate: gpu-reset")
    )

    back = running(fleet, tmp_path, "reset", "-H", "gpu01", "--escalate", "none", "-i", str(path))
    back.communicate(timeout=60)
    assert (back.returncode, rig.calls()) == (1, [])

    done = running(fleet, tmp_path, "reset", "-H", "gpu01", "-i", str(path))
    done.communicate(timeout=60)
    assert (done.returncode, rig.calls()) == (0, list(STEPS))


def test_a_word_that_is_no_rung_is_refused(gpufleet: Command) -> None:
    ran = gpufleet("reset", "-H", "gpu01", "--escalate", "reset")

    assert (ran.code, ran.out) == (2, "")
    assert '--escalate: read "reset": none, gpu-reset or reboot' in ran.err


@pytest.mark.parametrize(("answer", "calls"), [("n\n", []), ("y\n", list(STEPS))])
def test_the_question_names_it_and_a_no_is_a_no(
    answer: str, calls: list[str], fleet: SimFleet, node: SimNode, rig: Rig, tmp_path: Path
) -> None:
    node.fault(*WANTS)
    control, terminal = pty.openpty()
    arguments = ["reset", "-H", "gpu01,gpu02", "--escalate", "reboot", "--reboot-timeout", "5m"]
    process = running(fleet, tmp_path, *arguments, stdin=terminal, stderr=terminal)
    os.close(terminal)
    said = ""
    while "[y/N]" not in said:
        said += os.read(control, 65536).decode(errors="replace")
    os.write(control, answer.encode())
    process.communicate(timeout=60)
    os.close(control)

    assert "  gpu-reset: GPU 3 wants recovery action 'Reset': gpu01\r\n" in said
    assert "  if killing is not enough, GPU reset and then reboot: gpu01\r\n" in said
    assert "Kill these processes, and escalate as told? [y/N] " in said
    assert rig.calls() == calls


def test_what_waited_for_its_turn_is_looked_at_and_guarded_again(
    node: SimNode, rig: Rig, escalate: Escalate, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fault(*WANTS)
    monkeypatch.setattr(escalation, "STALE_S", 0.5)

    def turn(_host: str) -> str:
        if not node.path("/run/busy").exists():
            time.sleep(0.6)
            node.exec("touch /run/busy")
        return ""

    report = escalate(turn=turn, hooks=Hooks(guard="test ! -e /run/busy"))

    node.exec("rm -f /run/busy")
    assert report.verdict is Verdict.SKIPPED, report
    assert (report.escalations, rig.calls()) == ((), [])


def test_workload_that_came_while_it_waited_is_killed_and_nothing_else_forgotten(
    node: SimNode, rig: Rig, escalate: Escalate, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fault(*WANTS)
    monkeypatch.setattr(escalation, "STALE_S", 0.5)
    came: list[object] = []

    def turn(_host: str) -> str:
        if not came:
            job = ("python3", "-m", "sglang.launch_server")
            came.append(node.start((Proc("job", job, memory={0: 900}),)))
            time.sleep(0.6)
        return ""

    report = escalate(turn=turn)

    assert report.verdict is Verdict.CLEAN, report
    assert [line.signal for line in report.killed] == ["KILL"]
    assert (rungs(report), rig.calls()) == ([("gpu-reset", "yes")], list(STEPS))


def test_a_run_that_was_killed_in_its_midst_names_restore_in_the_record(
    fleet: SimFleet, node: SimNode, rig: Rig, tmp_path: Path, gpufleet: Command
) -> None:
    node.fault(*WANTS)
    rig.trouble("wait", RESET)
    arguments = ["reset", "-H", "gpu01", "--escalate", "gpu-reset"]
    with running(fleet, tmp_path, *arguments) as process:
        rig.await_call(RESET)
        process.send_signal(signal.SIGKILL)
    rig.calm()
    rig.await_that(lambda: not rig.written())

    runs = gpufleet("history", "--json").json["runs"]
    record = gpufleet("history", runs[0]["run_id"], "--json").json

    assert record["nodes"][0]["verdict"] == "UNKNOWN"
    assert record["nodes"][0]["next_step"] == "gpufleet restore --hosts gpu01"


def test_several_processes_cannot_take_turns_and_take_no_rung(
    fleet: SimFleet, node: SimNode, rig: Rig, tmp_path: Path
) -> None:
    node.fault(*WANTS)
    code = "from gpufleet.observation import Observation; Observation.on_host = True\n"
    (tmp_path / "sitecustomize.py").write_text(code)  # workers import it as well
    path = {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    arguments = ["reset", "-H", "gpu[01-02]", "--escalate", "gpu-reset", "--processes", "2"]
    out, _ = running(fleet, tmp_path, *arguments, "--json", env=path).communicate(timeout=60)

    [rung] = json.loads(out)["nodes"][0]["escalations"]
    assert rung["done"].startswith("no: only a run in one process (--processes 1)")
    assert rig.calls() == []


def test_another_boot_than_the_one_that_was_seen_is_not_ended(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*REBOOT)

    def turn(_host: str) -> str:
        rig.write("/run/boot_id", "33333333-3333-4333-8333-333333333333")
        return ""

    report = escalate("reboot", turn=turn)

    assert rungs(report) == [("reboot", "no: it was rebooted since the look")]
    assert (report.verdict, rig.calls()) == (Verdict.BROKEN, [])


def test_a_node_whose_daemons_are_down_is_not_rebooted_over_it(
    node: SimNode, rig: Rig, escalate: Escalate
) -> None:
    node.fault(*WANTS)
    rig.trouble("vain", RESET)
    rig.trouble("fail", STARTS[0])

    report = escalate("reboot")

    assert report.reason.startswith(f"not up again after the GPU reset: {UNITS[2]} (")
    assert rig.calls() == list(STEPS)
