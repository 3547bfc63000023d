"""Difficult nodes over real SSH: slow deaths, lost connections, owners, odd names; the fate of each."""

from __future__ import annotations

import threading
import time
from typing import Literal

import pytest

from gpufleet import run
from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import Limits, Policy
from gpufleet.reset import Resetting, reset_node
from gpufleet.run import Progress, new_run_id
from gpufleet.ssh import connect
from tests.conftest import QUICK, Reset, spec_of
from tests.simfleet import SGLANG, Proc, SimFleet, SimFleetError, SimNode
from tests.simfleet import scenes as scene

FATES: dict[str, tuple[scene.Scene, Verdict, set[str]]] = {
    # scene, verdict, labels of the processes that must live
    "vllm": (scene.VLLM, Verdict.CLEAN, set()),
    "training by the executable's name": (scene.TRAINING, Verdict.CLEAN, set()),
    "system programs in python": (
        scene.SYSTEM_PYTHON,
        Verdict.CLEAN,
        {proc.label for proc in scene.SYSTEM_PYTHON},
    ),
    "a user's program named like a daemon": (scene.LOOKALIKES, Verdict.CLEAN, set()),
    "an orphan with its dead parent's memory": (scene.ORPHAN, Verdict.CLEAN, set()),
    "a container": (scene.CONTAINER, Verdict.CLEAN, {"shim"}),
    "a pod": (scene.POD, Verdict.SKIPPED, {"kubelet", "pod"}),
    "a slurm job": (scene.SLURM, Verdict.SKIPPED, {"slurmd", "slurmstepd", "job"}),
    "an upgraded interpreter": (scene.UPGRADED, Verdict.CLEAN, set()),
    "odd names": (scene.ODD_NAMES, Verdict.CLEAN, set()),
    "a zombie": (scene.ZOMBIE, Verdict.CLEAN, set()),
}


@pytest.mark.parametrize("name", FATES)
def test_the_fate_of_every_process(name: str, node: SimNode, reset_sim: Reset) -> None:
    what, verdict, living = FATES[name]
    procs = node.start(what)

    report = reset_sim()

    assert report.verdict is verdict, report
    assert {proc.label for proc in procs if node.alive(proc)} == living


def test_threads_that_die_slowly_are_waited_for(node: SimNode, reset_sim: Reset) -> None:
    """The leader is a zombie at once; its threads free the memory for 1.5 s more."""
    start_or_skip(node, scene.SLOW_DEATH)

    report = reset_sim(limits=Limits())

    assert report.verdict is Verdict.CLEAN, report
    assert report.attempts == 1
    assert report.elapsed_s >= 1.5


def test_a_process_that_kill_cannot_end_is_broken(node: SimNode, reset_sim: Reset) -> None:
    [proc] = node.start((Proc("stuck", ("python3", "train.py"), memory={4: 8123}),))
    freeze_or_skip(node, proc)

    report = reset_sim()
    node.thaw(proc)

    assert report.verdict is Verdict.BROKEN, report
    assert "stays in state D after KILL" in report.reason
    assert "GPU 4: 8123 MiB" in report.reason
    assert report.next_step.endswith("reboot")


@pytest.mark.parametrize("name", ["RESPAWNING_PARENT", "RESPAWNING_UNIT"])
def test_a_respawn_is_never_clean_unless_its_source_is_gone(
    name: str, node: SimNode, reset_sim: Reset
) -> None:
    node.start(getattr(scene, name))

    report = reset_sim()

    if name == "RESPAWNING_PARENT":  # the watchdog is workload itself and goes first
        assert report.verdict is Verdict.CLEAN, report
        assert report.attempts == 1
    else:
        assert report.verdict is Verdict.DIRTY, report
        assert "came back after a kill" in report.reason
        assert "sglang.service" in report.reason
        assert report.next_step.endswith("systemctl stop sglang.service")


def test_a_connection_lost_while_killing_is_looked_at_again(
    node: SimNode, reset_sim: Reset
) -> None:
    node.start((Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=2),))
    during_act(node, node.drop_connections)

    report = reset_sim(limits=Limits())

    assert report.verdict is Verdict.CLEAN, report
    assert len(report.killed) == 1


def test_a_connection_lost_for_good_after_the_first_signal_is_unknown(
    node: SimNode, reset_sim: Reset
) -> None:
    node.start((Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=3),))

    def cut() -> None:
        node.stop_sshd()
        node.drop_connections()

    during_act(node, cut)

    report = reset_sim()

    assert report.verdict is Verdict.UNKNOWN, report
    assert "state not verified" in report.reason
    assert report.attempts == 1


def test_two_runs_at_once_never_both_act(fleet: SimFleet, node: SimNode, reset_sim: Reset) -> None:
    """The second one, which comes while the first waits for memory, is skipped and names the first."""
    node.start((*SGLANG, Proc("late", ("python3", "x.py"), memory={0: 10}, lag=6)))
    reports: list[NodeReport] = []
    during_act(node, lambda: reports.append(reset_sim(limits=Limits())))

    first = reset_sim(limits=Limits())
    deadline = time.monotonic() + 30
    while not reports and time.monotonic() < deadline:
        time.sleep(0.05)

    [second] = reports
    assert first.verdict is Verdict.CLEAN, first
    assert second.verdict is Verdict.SKIPPED, second
    assert second.reason.startswith("another reset holds this node: run 2")
    assert " by tests" in second.reason
    assert second.killed == ()


def during_act(node: SimNode, action: object) -> None:
    """Runs `action` in a thread as soon as an act holds the node's lock."""
    lock = node.path("/run/gpufleet/lock")
    lock.unlink(missing_ok=True)

    def wait() -> None:
        deadline = time.monotonic() + 20
        while not (lock.exists() and lock.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        action()  # type: ignore[operator]  # a callable without arguments

    threading.Thread(target=wait, daemon=True).start()


def start_or_skip(node: SimNode, what: scene.Scene) -> None:
    try:
        node.start(what)
    except SimFleetError as error:
        pytest.skip(f"this kernel can't show it: {error}")


def freeze_or_skip(node: SimNode, proc: object) -> None:
    try:
        node.freeze(proc)  # type: ignore[arg-type]  # a RunningProcess
    except SimFleetError as error:
        pytest.skip(f"this kernel can't show it: {error}")


def test_b02_the_loops_own_login_lives_whatever_its_command_line_says(
    fleet: SimFleet, node: SimNode
) -> None:
    """A login shell and a sudo whose arguments hold the pattern stand above the script."""
    [job] = node.start((Proc("job", ("python3", "train.py"), memory={0: 30_000}),))
    node.tool("sudo", "exec bash -c '/bin/sh -s; true # python3|sglang' \"sudo python3|sglang\"")
    spec = spec_of(fleet, node, sudo=True)

    report = reset_node(spec, lambda: connect(spec), Resetting("b02", "tests"))

    assert report.verdict is Verdict.CLEAN, report
    assert [line.pid for line in report.killed] == [job.pid]
    assert {line.rule for line in report.spared} == {"own"}


def test_b14_nothing_to_kill_and_children_gone_before_their_turn_are_no_errors(
    node: SimNode, reset_sim: Reset
) -> None:
    assert reset_sim().verdict is Verdict.CLEAN
    node.start(
        (
            Proc("parent", ("python3", "parent.py")),
            Proc("worker", ("python3", "worker.py"), parent="parent", term="die"),
        )
    )

    report = reset_sim(grace_s=1.0)

    assert report.verdict is Verdict.CLEAN, report


def test_e05_a_node_that_never_answers_costs_the_others_nothing(fleet: SimFleet) -> None:
    """gpu02 takes the connection and says nothing; gpu03 logs in, and its tools hang."""
    for name in ("gpu01", "gpu04"):
        fleet[name].start(scene.TRAINING)
    fleet["gpu02"].freeze_sshd()
    fleet["gpu03"].tool("ls", "sleep 60")
    policy = Policy(timeout_s=3, dying_timeout_s=3, limits=QUICK)
    specs = [spec_of(fleet, node, policy, connect_timeout_s=1.0) for node in fleet]
    finished: list[str] = []

    started = time.monotonic()
    report = run.reset(specs, progress=Progress(on_report=lambda node: finished.append(node.host)))

    verdicts = {node.host: node.verdict for node in report.nodes}
    assert verdicts == {
        "gpu01": Verdict.CLEAN,
        "gpu02": Verdict.UNREACHABLE,
        "gpu03": Verdict.UNKNOWN,
        "gpu04": Verdict.CLEAN,
    }
    assert report.nodes[1].stage == "handshake"
    assert finished[-1] == "gpu03"
    assert report.exit_code() == 3
    assert time.monotonic() - started < 40


ENDED_LEADER = """
import ctypes, threading, time
device = open("/dev/nvidia0", "r+b", buffering=0)
threading.Thread(target=time.sleep, args=(60,)).start()
open("/run/ready", "w").close()
ctypes.CDLL(None).pthread_exit(None)
"""


def run_inside(node: SimNode, name: str, text: str, command: str) -> None:
    """Starts a program of its own in the node, and waits until it says that it is ready."""
    node.path("/run/ready").unlink(missing_ok=True)
    node.path(f"/tmp/{name}").write_text(text)
    node.exec(f"setsid {command} /tmp/{name} </dev/null >/dev/null 2>&1 &")
    deadline = time.monotonic() + 10
    while not node.path("/run/ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)


def test_a_leader_that_ended_with_threads_alive_is_no_zombie(
    node: SimNode, reset_sim: Reset
) -> None:
    """Its own descriptors and command line are gone from /proc; its thread still holds the GPU."""
    run_inside(node, "ended.py", ENDED_LEADER, "python3")

    report = reset_sim()

    assert report.verdict is Verdict.CLEAN, report
    assert len(report.killed) == 1
    assert "python3 /tmp/ended.py" in report.killed[0].command
    assert not [p for p in node.processes() if p.comm == b"python3"]


def test_a_service_that_is_loading_again_is_not_sheltered(node: SimNode, reset_sim: Reset) -> None:
    """It holds no GPU yet, and was workload a moment ago."""
    unit = "/system.slice/server.service"
    node.start(
        (
            Proc("server", ("python3", "/opt/serve.py"), owner=unit, memory={0: 900}),
            Proc("loading", ("python3", "/opt/serve.py"), owner=unit, respawn=0.1),
        )
    )

    report = reset_sim()

    assert report.verdict is Verdict.DIRTY, report
    assert "server.service" in report.reason


def test_a_lock_ends_the_attempts_at_once(node: SimNode, reset_sim: Reset) -> None:
    node.start((Proc("job", ("python3", "x.py"), memory={0: 5}),))
    node.exec("mkdir -m 700 -p /run/gpufleet && echo other > /run/gpufleet/lock")
    holder = "exec 9<>/run/gpufleet/lock; flock -n 9; sleep 60 & echo $! > /run/holder"
    node.exec(f"setsid sh -c '{holder}' >/dev/null 2>&1")

    report = reset_sim()

    assert report.verdict is Verdict.SKIPPED, report
    assert report.attempts == 1


@pytest.mark.parametrize(("grace_s", "signal"), [(0, "KILL"), (15, "TERM")])
def test_an_interrupted_act_names_what_it_signalled(
    node: SimNode, fleet: SimFleet, grace_s: float, signal: str
) -> None:
    term: Literal["ignore"] = "ignore"
    node.start((Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=30, term=term),))
    interrupted = threading.Event()
    spec = spec_of(fleet, node, Policy(limits=QUICK, timeout_s=40, grace_s=grace_s))
    session = connect(spec)

    def stop() -> None:
        interrupted.set()
        session.close()

    during_act(node, stop)

    report = reset_node(
        spec, lambda: session, Resetting(new_run_id(), "tests", False, interrupted.is_set)
    )

    assert report.verdict is Verdict.UNKNOWN, report
    assert [(line.signal, line.command) for line in report.killed] == [(signal, "python3 train.py")]
    assert report.killed[0].why.endswith("end not confirmed")
    assert report.survivors == ()
