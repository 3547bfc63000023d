"""gpufleet against a real systemd, over real SSH: who is killed, who is spared, who comes back."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable

import pytest

from gpufleet.model import NodeReport, Verdict
from tests.simfleet import NodeProcess

from . import DAEMONS, Machine, daemon, job
from .conftest import Reset
from .units import JOBS

AtDeath = Callable[[NodeProcess, str], threading.Thread]


def memory(report: NodeReport) -> list[int | None]:
    return [gpu.memory_used_mib for gpu in report.gpus]


# What a service keeps running


def test_a_service_that_is_not_restarted_is_killed_and_the_node_is_clean(
    machine: Machine, reset: Reset
) -> None:
    main = machine.start_unit("sglang.service", job(memory="0=150000,1=150000"))
    assert "/dev/nvidia1" in machine.descriptors(main)

    report = reset()

    assert report.verdict is Verdict.CLEAN, report
    assert [line.owner for line in report.killed] == ["sglang.service"]
    assert [0] * 8 == memory(report)
    assert "failed" == machine.show("sglang.service", "ActiveState")


@pytest.mark.parametrize("delay", ["0.1", "3"])
def test_a_service_that_is_always_restarted_is_never_clean(
    delay: str, machine: Machine, reset: Reset
) -> None:
    main = machine.start_unit(
        "sglang.service", job(memory="0=150000", Restart="always", RestartSec=delay)
    )

    report = reset()

    assert report.verdict is Verdict.DIRTY, report
    assert "sglang.service" in report.reason
    assert report.next_step.endswith("systemctl stop sglang.service")
    assert report.attempts <= 3
    assert not machine.alive(main)
    assert machine.await_main("sglang.service", other_than=main.pid).pid != main.pid


def test_a_service_restarted_after_failures_is_never_clean(machine: Machine, reset: Reset) -> None:
    machine.start_unit("sglang.service", job(memory="0=1000", Restart="on-failure", RestartSec=9))

    report = reset()

    assert report.verdict is Verdict.DIRTY, report
    assert "sglang.service comes back" in report.reason


def test_without_settling_a_restart_that_is_due_is_seen(machine: Machine, reset: Reset) -> None:
    machine.start_unit("sglang.service", job(memory="0=1000", Restart="always", RestartSec=9))

    assert reset(settle_s=0).verdict is Verdict.DIRTY


def test_a_restart_that_races_the_last_sample_is_never_clean(
    machine: Machine, reset: Reset
) -> None:
    """It comes between the second sample's processes and the question about units."""
    for delay in (0.52, 0.62):
        text = job(memory="0=1000", Restart="always", RestartSec=delay, StartLimitBurst=99)
        machine.start_unit("sglang.service", text)

        report = reset()

        assert report.verdict is not Verdict.CLEAN, (delay, report)
        machine.clear()


def test_stop_as_the_next_step_says_makes_the_node_clean(machine: Machine, reset: Reset) -> None:
    machine.start_unit("sglang.service", job(memory="0=1000", Restart="always", RestartSec=0.1))
    step = reset().next_step

    assert 0 == paste(machine, step)

    assert reset().verdict is Verdict.CLEAN


def test_the_next_step_also_stops_a_unit_with_an_escaped_name(
    machine: Machine, reset: Reset
) -> None:
    name = "sglang-llama\\x2d70b@0.service"
    machine.start_unit(name, job(memory="0=1000", Restart="always", RestartSec=9))
    report = reset()
    assert report.verdict is Verdict.DIRTY, report
    assert name in report.reason

    paste(machine, report.next_step)

    assert "inactive" == machine.show(name, "ActiveState")


def test_a_transient_unit_that_is_restarted_is_never_clean(machine: Machine, reset: Reset) -> None:
    machine.exec(
        f"systemd-run -p Restart=always -p RestartSec=9 -p WorkingDirectory={JOBS}"
        " -E JOB_MEMORY=1=500 python3 train.py"
    )
    unit = machine.await_process("train.py").owner.rpartition("/")[2]

    report = reset()

    assert report.verdict is Verdict.DIRTY, report
    assert report.next_step.endswith(f"systemctl stop {unit}")


def test_a_transient_scope_is_killed(machine: Machine, reset: Reset) -> None:
    machine.exec(
        f"cd {JOBS}; JOB_MEMORY=1=500 systemd-run --scope -q python3 train.py >/dev/null 2>&1 &"
    )
    job_process = machine.await_process("train.py")
    assert job_process.owner.endswith(".scope")

    report = reset()

    assert report.verdict is Verdict.CLEAN, report
    assert not machine.alive(job_process)


def test_a_service_whose_stop_takes_long_is_never_clean(machine: Machine, reset: Reset) -> None:
    """ExecStopPost= still runs: only then comes RestartSec=, and the service."""
    text = job(memory="0=1000", Restart="always", RestartSec=0.1, ExecStopPost="/bin/sleep 3")
    machine.start_unit("sglang.service", text)

    report = reset()

    assert report.verdict is not Verdict.CLEAN, report


def test_a_second_reset_while_the_restart_is_due_is_never_clean(
    machine: Machine, reset: Reset
) -> None:
    machine.start_unit("sglang.service", job(memory="0=1000", Restart="always", RestartSec=30))
    reset()
    assert "auto-restart" == machine.show("sglang.service", "SubState")

    report = reset()

    assert report.verdict is Verdict.DIRTY, report
    assert "sglang.service" in report.reason


def test_a_connection_lost_at_the_kill_does_not_hide_a_restart(
    machine: Machine, reset: Reset, at_death: AtDeath
) -> None:
    text = job(memory="0=1000", Restart="always", RestartSec=9)
    main = machine.start_unit("sglang.service", text)
    drop = at_death(main, "pkill -KILL -f '^sshd: root@'")

    report = reset()
    drop.join()

    assert report.verdict is not Verdict.CLEAN, report


def test_a_restarted_service_in_a_slice_of_its_own_is_never_clean(
    machine: Machine, reset: Reset
) -> None:
    text = job(memory="0=1000", Restart="always", RestartSec=9, Slice="gpu.slice")
    machine.start_unit("sglang.service", text)

    report = reset()

    assert report.verdict is Verdict.DIRTY, report


def test_a_restarted_service_of_a_user_is_never_clean(machine: Machine, reset: Reset) -> None:
    start_user_service(machine, job(memory="0=1000", Restart="always", RestartSec=9))

    report = reset()

    assert report.verdict is not Verdict.CLEAN, report


def test_a_timer_that_starts_the_workload_again_is_told(machine: Machine, reset: Reset) -> None:
    machine.write("sglang.timer", "[Timer]\nOnActiveSec=10ms\nOnUnitInactiveSec=5\n")
    machine.write("sglang.service", job(memory="0=1000"))
    machine.systemctl("start sglang.timer")
    machine.await_main("sglang.service")

    report = reset()

    assert "sglang.timer" in " ".join([report.reason, *report.warnings]), report


# Who is sheltered


def test_a_python_service_without_gpu_lives(machine: Machine, reset: Reset) -> None:
    portal = machine.start_unit("portal.service", job("portal.py"))
    machine.start_unit("sglang.service", job(memory="0=1000"))

    report = reset()

    assert report.verdict is Verdict.CLEAN, report
    assert machine.alive(portal)
    assert [("portal.service", "service")] == [(s.owner, s.rule) for s in report.spared]


def test_a_python_service_in_a_delegated_group_lives(machine: Machine, reset: Reset) -> None:
    portal = machine.start_unit("portal.service", job("portal.py", Delegate="yes"))
    group = "/sys/fs/cgroup/system.slice/portal.service/inner"
    done = machine.exec(f"mkdir {group} && echo {portal.pid} >{group}/cgroup.procs")
    assert "" == done.stderr

    assert reset().verdict is Verdict.CLEAN
    assert machine.alive(portal)


def test_a_python_service_in_a_slice_of_its_own_lives(machine: Machine, reset: Reset) -> None:
    portal = machine.start_unit("portal.service", job("portal.py", Slice="web.slice"))

    reset()

    assert machine.alive(portal)


def test_a_python_service_with_a_worker_on_a_gpu_is_killed_whole(
    machine: Machine, reset: Reset
) -> None:
    machine.start_unit("portal.service", job("portal.py", memory="3=700", workers=2))
    assert 3 == len(machine.of_unit("portal.service"))

    report = reset()

    assert report.verdict is Verdict.CLEAN, report
    assert [] == machine.of_unit("portal.service")
    assert {"portal.service"} == {line.owner for line in report.killed}


def test_a_monitor_lives_and_is_no_bar_to_clean(machine: Machine, reset: Reset) -> None:
    exporter = machine.start_unit("exporter.service", job("exporter.py", opens="nvidiactl"))
    assert "/dev/nvidiactl" in machine.descriptors(exporter)

    report = reset()

    assert report.verdict is Verdict.CLEAN, report
    assert machine.alive(exporter)
    assert ["monitor"] == [line.rule for line in report.spared]


def test_a_job_of_at_is_not_sheltered_by_atd(machine: Machine, reset: Reset) -> None:
    machine.exec(f"cd {JOBS}; echo 'JOB_MEMORY=0=900 python3 train.py' | at now")
    started = machine.await_process("train.py")
    assert started.owner.endswith("/system.slice/atd.service")
    atd = machine.show("atd.service", "MainPID")

    report = reset()

    assert report.verdict is Verdict.CLEAN, report
    assert not machine.alive(started)
    assert atd == machine.show("atd.service", "MainPID")


# Logins


def test_other_logins_live_and_the_workload_in_one_dies(machine: Machine, reset: Reset) -> None:
    bystander = machine.login("echo in; exec sleep 100")
    assert bystander.stdout is not None
    assert "in\n" == bystander.stdout.readline()
    worker = machine.login(f"cd {JOBS}; JOB_MEMORY=0=900 exec python3 train.py")
    started = machine.await_process("train.py")
    assert "/user.slice/user-0.slice/session-" in started.owner

    report = reset()

    assert report.verdict is Verdict.CLEAN, report
    assert [started.pid] == [line.pid for line in report.killed]
    worker.communicate(timeout=10)
    assert bystander.poll() is None
    bystander.kill()
    bystander.communicate()


def test_a_service_of_a_user_is_killed_and_the_users_manager_lives(
    machine: Machine, reset: Reset
) -> None:
    started = start_user_service(machine, job(memory="0=1000"))
    manager = machine.show("user@1002.service", "MainPID")

    report = reset()

    assert report.verdict is Verdict.CLEAN, report
    assert not machine.alive(started)
    assert manager == machine.show("user@1002.service", "MainPID")


# GPU daemons


def test_running_daemons_are_spared_and_the_node_is_clean(machine: Machine, reset: Reset) -> None:
    daemons = [start_enabled(machine, name) for name in DAEMONS]
    machine.start_unit("sglang.service", job(memory="0=1000"))

    report = reset()

    assert report.verdict is Verdict.CLEAN, report
    assert () == report.warnings
    assert all(machine.alive(process) for process in daemons)
    assert {f"{name}.service" for name in DAEMONS} == {line.owner for line in report.spared}


@pytest.mark.parametrize("name", ["nvidia-fabricmanager", "nvidia-persistenced"])
def test_an_enabled_daemon_that_was_stopped_makes_a_free_node_broken(
    name: str, machine: Machine, reset: Reset, status: Reset
) -> None:
    start_enabled(machine, name)
    machine.systemctl(f"stop {name}")

    report = reset()

    assert report.verdict is Verdict.BROKEN, report
    assert f"{name}.service is enabled and inactive" in report.reason
    assert f"systemctl restart {name}.service" in report.next_step
    assert [0] * 8 == memory(report)
    assert status().verdict is Verdict.BROKEN


def test_a_fabric_manager_that_failed_is_broken(machine: Machine, reset: Reset) -> None:
    process = start_enabled(machine, "nvidia-fabricmanager")
    machine.exec(f"kill -KILL {process.pid}")

    report = reset()

    assert report.verdict is Verdict.BROKEN, report
    assert "nvidia-fabricmanager.service is enabled and failed" in report.reason


def test_a_disabled_and_stopped_fabric_manager_is_no_fault(machine: Machine, reset: Reset) -> None:
    machine.write("nvidia-fabricmanager.service", daemon("nvidia-fabricmanager"))
    assert "disabled" == machine.show("nvidia-fabricmanager.service", "UnitFileState")

    assert reset().verdict is Verdict.CLEAN


@pytest.mark.parametrize("how", ["restart", "stop"])
def test_a_fabric_manager_touched_during_the_run_is_broken(
    how: str, machine: Machine, reset: Reset
) -> None:
    start_enabled(machine, "nvidia-fabricmanager")
    stop_post = f"/usr/bin/systemctl {how} nvidia-fabricmanager"
    machine.start_unit("sglang.service", job(memory="0=1000", ExecStopPost=stop_post))

    report = reset()

    assert report.verdict is Verdict.BROKEN, report
    assert "nv-fabricmanager" in report.reason
    assert "did not survive the run unchanged" in report.reason


# Looking only


def test_status_and_dry_run_name_the_owners_and_change_nothing(
    machine: Machine, reset: Reset, status: Reset
) -> None:
    sglang = machine.start_unit("sglang.service", job(memory="0=1000"))
    portal = machine.start_unit("portal.service", job("portal.py"))

    seen, planned = status(), reset(dry_run=True)

    assert seen.verdict is Verdict.BUSY, seen
    for report in (seen, planned):
        assert ["sglang.service"] == [line.owner for line in report.planned]
        assert ["portal.service"] == [line.owner for line in report.spared]
    assert planned.verdict is not Verdict.CLEAN
    assert machine.alive(sglang)
    assert machine.alive(portal)


def start_enabled(machine: Machine, name: str) -> NodeProcess:
    machine.write(f"{name}.service", daemon(name))
    machine.systemctl(f"enable -q {name}")
    return machine.start_unit(f"{name}.service")


def start_user_service(machine: Machine, text: str) -> NodeProcess:
    """As alice's, whose manager lingers."""
    folder = machine.path("/home/alice/.config/systemd/user")
    folder.mkdir(parents=True)
    (folder / "sglang.service").write_text(text)
    machine.exec("chown -R alice: /home/alice; loginctl enable-linger alice")
    machine.run_as("alice", "systemctl --user daemon-reload; systemctl --user start sglang")
    started = machine.await_process("sglang.launch_server")
    assert "/user@1002.service/" in started.owner
    return started


def paste(machine: Machine, step: str) -> int:
    """Runs a next step as a person's shell would, with the tests' key."""
    words = f"-F none -o UserKnownHostsFile={machine.keys.known_hosts} -i {machine.keys.identity}"
    assert step.startswith("ssh "), step
    command = step.replace("ssh ", f"ssh {words} ", 1)
    return subprocess.run(
        ["/bin/sh", "-c", command], check=False, capture_output=True, timeout=20
    ).returncode
