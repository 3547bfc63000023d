"""The scripts that run on nodes: the same answer from every shell that may be /bin/sh there."""

from __future__ import annotations

import shutil

import pytest

from gpufleet.node import act_script, look_script
from gpufleet.observation import Observation, parse_observation
from gpufleet.policy import Limits, Policy
from gpufleet.transport import AnswerReader, Script
from tests.simfleet import SGLANG, Proc, SimNode

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
POLICY = Policy(limits=Limits(still_s=1))


def answered(node: SimNode, shell: str, script: Script) -> Observation:
    """Runs a script in the node by `shell -s`, as sshd would."""
    path = node.path(f"/tmp/script-{shell}")
    path.write_text(script.text("t0k3n"))
    reader = AnswerReader("t0k3n")
    done = node.exec(f"{shell} -s <{'/tmp/' + path.name}")
    reader.feed(done.stdout.encode("utf-8", "surrogateescape"))
    assert reader.finished, done
    assert done.stderr == ""
    return parse_observation(reader.answer())


@pytest.mark.parametrize("shell", SHELLS)
def test_a_look_sees_all_processes_holders_and_health(shell: str, node: SimNode) -> None:
    procs = {proc.label: proc for proc in node.start(SGLANG)}

    seen = answered(node, shell, look_script(POLICY, two_samples=False, budget_s=30))

    [sample] = seen.samples
    assert {proc.pid for proc in procs.values()} <= set(sample.processes)
    assert sample.blind == ()
    assert sample.fuser == {p.pid for p in sample.holders()}
    worker = sample.processes[procs["scheduler3"].pid]
    assert worker.command == "sglang::scheduler_TP3"
    assert "/dev/nvidia3" in worker.devices
    assert "/dev/nvidia3" in worker.mapped
    assert (worker.user, worker.uid) == ("root", 0)
    assert worker.start_ticks == procs["scheduler3"].start_ticks
    daemon = sample.processes[procs["persistenced"].pid]
    assert daemon.user == "nvidia-persistenced"
    assert str(daemon.owner) == "nvidia-persistenced.service"
    assert sample.memory.used_mib() == dict.fromkeys(range(8), 150_000)
    assert seen.health.failure == ""
    assert set(seen.health.values) == set(range(8))
    assert seen.self_pid in sample.processes


@pytest.mark.parametrize("shell", SHELLS)
def test_an_act_signals_only_the_very_process_that_was_seen(shell: str, node: SimNode) -> None:
    """A pid that was given to another process meanwhile has another start time."""
    job, other = node.start(
        (
            Proc("job", ("python3", "a.py"), memory={0: 100}),
            Proc("other", ("python3", "b.py")),
        )
    )
    kill = [(job.pid, job.start_ticks), (other.pid, other.start_ticks + 1), (999_999, 1)]
    script = act_script(POLICY, kill=kill, lock="test", budget_s=20, dying_budget_s=20)

    seen = answered(node, shell, script)

    assert seen.act is not None
    assert seen.act.signals == {(job.pid, job.start_ticks): "KILL"}
    assert seen.act.stop == "free"
    assert seen.act.dead_s is not None
    assert len(seen.samples) == 2
    assert seen.samples[1].uptime_cs - seen.samples[0].uptime_cs >= 49
    assert not node.alive(job)
    assert node.alive(other)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_field_that_a_driver_refuses_is_left_out_alone(shell: str, node: SimNode) -> None:
    node.fault("refuse", "gpu_recovery_action,fabric.state")

    seen = answered(node, shell, look_script(POLICY, two_samples=False, budget_s=30))

    assert seen.health.refused == ("gpu_recovery_action", "fabric.state")
    assert seen.health.values[0]["fabric.status"]
    assert seen.health.failure == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_that_nobody_hears_ends_and_frees_the_lock(shell: str, node: SimNode) -> None:
    """Its next heartbeat can't be written."""
    [job] = node.start((Proc("job", ("python3", "a.py"), memory={0: 100}, lag=30),))
    kill = [(job.pid, job.start_ticks)]
    script = act_script(POLICY, kill=kill, lock="test", budget_s=30, dying_budget_s=30)
    node.path("/tmp/act").write_text(script.text("t0k3n"))
    node.exec("mkdir -pm 700 /run/gpufleet; true >/run/gpufleet/smi.99999.out")  # of a killed one

    node.exec(f"{shell} -s </tmp/act | head -c 300 >/dev/null", timeout_s=15)

    free = node.exec("flock -n /run/gpufleet/lock true")
    assert free.returncode == 0
    assert set(node.exec("ls /run/gpufleet").stdout.split()) <= {"lock", "acts"}


def test_an_empty_kill_list_only_watches(node: SimNode) -> None:
    procs = node.start(SGLANG)
    script = act_script(POLICY, kill=[], lock="test", budget_s=20, dying_budget_s=20)

    seen = answered(node, "sh", script)

    assert seen.act is not None
    assert seen.act.signals == {}
    assert seen.act.stop == "still"
    assert all(node.alive(proc) for proc in procs)
