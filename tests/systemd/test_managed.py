"""Owners under a real systemd: stopped by it, started again, and left alone where others are in it."""

from __future__ import annotations

import pytest

from gpufleet.model import NodeReport, Verdict
from gpufleet.reset import restore_node
from gpufleet.ssh import connect

from . import DAEMONS, Machine, job
from .conftest import Reset, spec_of
from .test_systemd import AtDeath, start_enabled, start_user_service

FILE = "/var/lib/gpufleet-node/stopped"
STUBBORN = {"Restart": "always", "RestartSec": 0.1, "StartLimitBurst": 99}


def restore(machine: Machine) -> NodeReport:
    spec = spec_of(machine)
    return restore_node(spec, lambda: connect(spec), "run r by tests")


@pytest.fixture(autouse=True)
def _no_file(machine: Machine) -> None:
    machine.exec("rm -rf /var/lib/gpufleet-node")


@pytest.mark.parametrize("name", ["sglang.service", "sglang-llama\\x2d70b@0.service"])
def test_a_service_with_restart_always_is_stopped_and_the_node_is_clean(
    name: str, machine: Machine, reset: Reset
) -> None:
    machine.start_unit(name, job(memory="0=150000", **STUBBORN))

    report = reset(stop="owner")

    assert report.verdict is Verdict.CLEAN, report
    assert [(name, "yes", "")] == [(s.owner, s.stopped, s.restored) for s in report.stopped]
    assert "inactive" == machine.show(name, "ActiveState")
    assert machine.path(FILE).read_text().startswith(f"service {name} ")
    assert 0o700 == machine.path(FILE).parent.stat().st_mode & 0o777


def test_what_was_stopped_runs_again_after_clean(machine: Machine, reset: Reset) -> None:
    before = machine.start_unit("sglang.service", job(memory="0=1000", **STUBBORN))

    report = reset(stop="owner", restart=True)

    assert report.verdict is Verdict.CLEAN, report
    assert [("sglang.service", "yes", "yes")] == [
        (s.owner, s.stopped, s.restored) for s in report.stopped
    ]
    machine.await_main("sglang.service", other_than=before.pid)
    assert not machine.path(FILE).exists()


def test_two_services_are_started_in_reverse_order(machine: Machine, reset: Reset) -> None:
    for number in (1, 2):
        start = f"/bin/sh -c 'echo {number} >>/run/order'"
        text = job(memory=f"{number}=1000", ExecStartPre=start)
        machine.start_unit(f"sglang{number}.service", text)
    machine.exec("rm /run/order")

    report = reset(stop="owner", restart=True)

    assert report.verdict is Verdict.CLEAN, report
    stopped = [s.owner.removeprefix("sglang").removesuffix(".service") for s in report.stopped]
    assert stopped[::-1] == machine.path("/run/order").read_text().split()


def test_a_service_that_does_not_come_up_is_told_and_stays_in_the_file(
    machine: Machine, reset: Reset
) -> None:
    text = job(memory="0=1000", ExecStartPre="/bin/sh -c '! test -e /run/broken'")
    machine.start_unit("sglang.service", text)
    machine.exec("touch /run/broken")

    report = reset(stop="owner", restart=True)

    machine.exec("rm /run/broken")
    assert report.verdict is Verdict.BROKEN, report
    assert report.reason.startswith("clean, but not up again: sglang.service")
    assert report.next_step == "gpufleet restore --hosts gpu01"
    assert report.stopped[0].restored.startswith("no: ")
    assert restore(machine).verdict is Verdict.READY
    assert "active" == machine.show("sglang.service", "ActiveState")


def test_a_service_that_fails_soon_after_its_start_is_not_up(
    machine: Machine, reset: Reset
) -> None:
    text = job(memory="0=1000", ExecStartPost="/bin/sh -c '! test -e /run/broken || exit 1'")
    machine.start_unit("sglang.service", text.replace("[Service]", "[Service]\nRestart=always"))
    machine.exec("touch /run/broken")

    report = reset(stop="owner", restart=True)

    machine.exec("rm /run/broken")
    assert report.verdict is Verdict.BROKEN, report


def test_on_a_node_that_is_not_clean_it_stays_stopped(machine: Machine, reset: Reset) -> None:
    machine.start_unit("sglang.service", job(memory="0=1000", **STUBBORN))

    report = reset(stop="owner", restart=True, gpus=9)

    assert report.verdict is Verdict.BROKEN, report
    assert "inactive" == machine.show("sglang.service", "ActiveState")
    assert report.next_step.endswith("gpufleet restore --hosts gpu01")
    assert "" == report.stopped[0].restored


def test_a_lost_connection_while_stopping_loses_nothing(
    machine: Machine, reset: Reset, at_death: AtDeath
) -> None:
    main = machine.start_unit("sglang.service", job(memory="0=1000", ExecStopPost="/bin/sleep 2"))
    drop = at_death(main, "pkill -KILL -f '^sshd: root@'")

    report = reset(stop="owner", restart=True)
    drop.join()

    assert report.verdict is Verdict.UNKNOWN, report
    assert report.next_step.endswith("gpufleet restore --hosts gpu01")
    again = restore(machine)
    assert again.verdict is Verdict.READY, again
    assert [("sglang.service", "yes")] == [(s.owner, s.restored) for s in again.stopped]
    assert "active" == machine.show("sglang.service", "ActiveState")
    assert () == restore(machine).stopped


def test_a_users_service_is_stopped_and_started_again(machine: Machine, reset: Reset) -> None:
    main = start_user_service(machine, job(memory="0=1000", **STUBBORN))

    report = reset(stop="owner", restart=True)

    assert report.verdict is Verdict.CLEAN, report
    assert [("yes", "yes")] == [(s.stopped, s.restored) for s in report.stopped]
    assert not machine.alive(main)
    machine.await_process("sglang.launch_server")


def test_a_service_with_somebody_elses_process_is_not_stopped(
    machine: Machine, reset: Reset
) -> None:
    """Its main process is no workload: only what holds the GPU is killed."""
    inner = "cd /run/simnode/programs/jobs && (JOB_MEMORY=0=900 setsid python3 train.py &); exec sleep 99"
    text = f"[Service]\nExecStart=/bin/sh -c '{inner}'\n"
    machine.write("agent.service", text)
    machine.systemctl("start agent.service")
    worker = machine.await_process("train.py")
    main = machine.show("agent.service", "MainPID")

    report = reset(stop="owner")

    assert report.verdict is Verdict.CLEAN, report
    assert [f"its main process (pid {main}) is no workload"] == [s.stopped for s in report.stopped]
    assert not machine.alive(worker)
    assert "active" == machine.show("agent.service", "ActiveState")


def test_a_service_with_a_protected_process_is_not_stopped(machine: Machine, reset: Reset) -> None:
    text = job(memory="0=1000", ExecStartPost="/bin/sh -c 'tail -f /dev/null & true'")
    machine.start_unit("sglang.service", text)
    tail = machine.await_unready("tail")

    report = reset(stop="owner", protect=("tail",))

    assert report.stopped[0].stopped == f"pid {tail.pid} in it is spared (protect: tail)", report
    assert report.killed


def test_daemons_other_services_and_logins_are_untouched(machine: Machine, reset: Reset) -> None:
    daemons = [start_enabled(machine, name) for name in DAEMONS]
    portal = machine.start_unit("portal.service", job("portal.py"))
    machine.start_unit("sglang.service", job(memory="0=1000", **STUBBORN))

    report = reset(stop="owner")

    assert report.verdict is Verdict.CLEAN, report
    assert ["sglang.service"] == [s.owner for s in report.stopped]
    assert all(machine.alive(process) for process in (*daemons, portal))


def test_dry_run_and_status_show_the_restart_policy_and_stop_nothing(
    machine: Machine, reset: Reset, status: Reset
) -> None:
    main = machine.start_unit("sglang.service", job(memory="0=1000", **STUBBORN))

    planned, seen = reset(dry_run=True, stop="owner"), status()

    for report in (planned, seen):
        assert ["always"] == [line.restart for line in report.planned]
    assert [("sglang.service", "systemctl stop sglang.service", "")] == [
        (s.owner, s.action, s.stopped) for s in planned.stopped
    ]
    assert machine.alive(main)
    assert not machine.path(FILE).exists()


def test_without_the_setting_nothing_is_stopped_and_the_policy_is_told(
    machine: Machine, reset: Reset
) -> None:
    machine.start_unit("sglang.service", job(memory="0=1000", **STUBBORN))

    report = reset()

    assert report.verdict is Verdict.DIRTY
    assert () == report.stopped
    assert {"always"} == {line.restart for line in report.killed}


def test_a_service_that_was_not_up_is_not_started(machine: Machine, reset: Reset) -> None:
    """It ended between the look and the stop."""
    machine.start_unit("sglang.service", job(memory="0=1000"))
    machine.write("other.service", job("portal.py"))

    reset(stop="owner", restart=True)

    assert "inactive" == machine.show("other.service", "ActiveState")


def test_where_nothing_can_be_written_down_nothing_is_stopped(
    machine: Machine, reset: Reset
) -> None:
    main = machine.start_unit("sglang.service", job(memory="0=1000", **STUBBORN))
    machine.exec("mkdir -m 755 /var/lib/gpufleet-node")

    report = reset(stop="owner")

    assert report.verdict is Verdict.UNKNOWN, report
    assert "is not root's own folder with mode 0700" in report.reason
    assert report.reason.endswith("nothing was stopped or killed")
    assert machine.alive(main)
