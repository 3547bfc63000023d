"""Resets of simulated nodes over real SSH: what is killed, what lives, and when it is CLEAN."""

from __future__ import annotations

import time

import pytest

from gpufleet.model import Verdict
from gpufleet.policy import Limits
from tests.conftest import Command, Reset, command_for
from tests.simfleet import IDLE, SGLANG, Proc, SimFleet, SimNode
from tests.simfleet.scene import RunningProcess
from tests.simfleet.scenes import BYSTANDERS

DAEMONS = {proc.label for proc in IDLE}


def daemons(procs: list[RunningProcess]) -> list[RunningProcess]:
    return [proc for proc in procs if proc.label in DAEMONS]


def workload(procs: list[RunningProcess]) -> list[RunningProcess]:
    return [proc for proc in procs if proc.label not in DAEMONS]


def pids(lines: object) -> set[int]:
    return {line["pid"] for line in lines}  # type: ignore[attr-defined]  # JSON


def test_the_main_job_kills_ten_spares_five_and_proves_it(node: SimNode, gpufleet: Command) -> None:
    procs = node.start(SGLANG)

    ran = gpufleet("reset", "--hosts", "gpu01", "--json")

    document = ran.json
    report = document["nodes"][0]
    assert ran.code == document["exit_code"] == 0
    assert report["verdict"] == "CLEAN"
    assert [gpu["index"] for gpu in report["gpus"]] == list(range(8))
    assert {gpu["memory_before_mib"] for gpu in report["gpus"]} == {150_000}
    assert {gpu["memory_used_mib"] for gpu in report["gpus"]} == {0}
    assert pids(report["killed"]) == {proc.pid for proc in workload(procs)}
    assert pids(report["spared"]) == {proc.pid for proc in daemons(procs)}
    assert len(report["killed"]) == 10
    assert len(report["spared"]) == 5
    assert all(line["why"] and line["rule"] for line in report["killed"] + report["spared"])
    assert {line["signal"] for line in report["killed"]} == {"KILL"}
    assert not any(node.alive(proc) for proc in workload(procs))
    assert all(node.alive(proc) for proc in daemons(procs))
    assert report["elapsed_s"] < 10  # a hang, not slowness: speed is measured elsewhere


def test_an_idle_node_is_clean_in_one_look_and_loses_nothing(
    node: SimNode, reset_sim: Reset
) -> None:
    procs = node.start(IDLE)

    report = reset_sim()

    assert report.verdict is Verdict.CLEAN, report
    assert report.attempts == 0
    assert report.killed == ()
    assert all(node.alive(proc) for proc in procs)


def test_a_dry_run_sends_no_signal_and_says_whom_and_why(node: SimNode, gpufleet: Command) -> None:
    procs = node.start(SGLANG)
    before = {(p.pid, p.start_ticks) for p in node.processes()}

    ran = gpufleet("reset", "--hosts", "gpu01", "--dry-run")

    assert ran.code == 0
    assert all(node.alive(proc) for proc in procs)
    assert {(proc.pid, proc.start_ticks) for proc in procs} <= before
    assert not any(node.signals_seen(proc) for proc in procs)
    for proc in workload(procs):
        assert f"would kill: {proc.pid} root " in ran.out
    for proc in daemons(procs):
        assert f"spared: {proc.pid} " in ran.out
    assert "sglang::scheduler_TP3  (workload: matches sglang)" in ran.out
    assert "nv-fabricmanager" in ran.out
    assert "(gpu-daemon: GPU daemon" in ran.out
    assert "CLEAN" not in ran.out
    assert "    next: gpufleet reset --hosts gpu01\n" in ran.out


def test_a_dry_run_in_json_lists_the_plan_without_signals(node: SimNode, gpufleet: Command) -> None:
    procs = node.start(SGLANG)

    report = gpufleet("reset", "--hosts", "gpu01", "--dry-run", "--json").json["nodes"][0]

    assert pids(report["killed"]) == {proc.pid for proc in workload(procs)}
    assert {line["signal"] for line in report["killed"]} == {""}
    assert report["verdict"] != "CLEAN"


def test_bystanders_that_mention_the_workload_live(node: SimNode, reset_sim: Reset) -> None:
    procs = node.start(BYSTANDERS)

    report = reset_sim()

    assert report.verdict is Verdict.CLEAN, report
    assert all(node.alive(proc) for proc in procs)


def test_a_holder_without_a_telling_name_is_killed(node: SimNode, reset_sim: Reset) -> None:
    [proc] = node.start((Proc("trainer", ("/opt/app/trainer",), exe="trainer", memory={2: 900}),))

    report = reset_sim()

    assert report.verdict is Verdict.CLEAN, report
    assert [line.rule for line in report.killed] == ["holder"]
    assert not node.alive(proc)


def test_memory_that_frees_late_is_waited_for(node: SimNode, reset_sim: Reset) -> None:
    node.start((Proc("late", ("python3", "train.py"), memory={0: 1000}, lag=4),))

    started = time.monotonic()
    report = reset_sim(limits=Limits())

    assert report.verdict is Verdict.CLEAN, report
    assert report.attempts == 1
    assert time.monotonic() - started >= 4


def test_memory_that_never_falls_ends_broken_and_is_named(node: SimNode, reset_sim: Reset) -> None:
    node.start((Proc("job", ("python3", "train.py"), memory={3: 1000}),))
    node.fault("stuck3", "812")

    report = reset_sim()

    assert report.verdict is Verdict.BROKEN, report
    assert "GPU 3: 812 MiB" in report.reason
    assert "held by nobody" in report.reason


def test_idle_memory_asks_for_a_tolerance(node: SimNode, reset_sim: Reset) -> None:
    for gpu in range(8):
        node.fault(f"idle{gpu}", "4")

    report = reset_sim()

    assert report.verdict is Verdict.DIRTY, report
    assert "GPU 0-7: 4 MiB, no process holds the device" in report.reason
    assert "tolerance: 4" in report.next_step


def test_a_tolerance_is_honoured_and_told(node: SimNode, reset_sim: Reset) -> None:
    node.fault("idle5", "4")

    report = reset_sim(tolerance_mib=4)

    assert report.verdict is Verdict.CLEAN, report
    assert report.warnings == ("up to 4 MiB count as free (tolerance: 4 MiB)",)


def test_a_word_for_a_number_is_never_clean(node: SimNode, gpufleet: Command) -> None:
    node.fault("gpu3", "[N/A]")

    ran = gpufleet("reset", "--hosts", "gpu01", "--json")

    report = ran.json["nodes"][0]
    assert ran.code == 3
    assert report["verdict"] == "UNKNOWN"
    assert "GPU 3 reads '[N/A]'" in report["reason"]
    assert report["gpus"][3]["memory_used_mib"] is None
    assert report["gpus"][3]["raw"] == "[N/A]"


def test_a_missing_gpu_is_broken_and_counted(node: SimNode, gpufleet: Command) -> None:
    node.fault("missing7", "")

    ran = gpufleet("reset", "--hosts", "gpu01", "--json")

    assert ran.code == 1
    assert ran.nodes()["gpu01"]["verdict"] == "BROKEN"
    assert "7 of 8 GPUs reported, missing 7" in ran.nodes()["gpu01"]["reason"]


def test_the_workload_is_killed_although_the_gpus_are_odd(node: SimNode, reset_sim: Reset) -> None:
    procs = node.start(SGLANG)
    node.fault("missing7", "")

    report = reset_sim()

    assert report.verdict is Verdict.BROKEN, report
    assert len(report.killed) == 10
    assert not any(node.alive(proc) for proc in workload(procs))


def test_a_hanging_nvidia_smi_is_broken_and_nothing_is_killed(
    node: SimNode, reset_sim: Reset
) -> None:
    procs = node.start(SGLANG)
    node.fault("hang", "deaf")

    report = reset_sim()

    assert report.verdict is Verdict.BROKEN, report
    assert "nvidia-smi hangs" in report.reason
    assert report.killed == ()
    assert all(node.alive(proc) for proc in procs)


def test_without_device_files_nothing_is_proven(node: SimNode, reset_sim: Reset) -> None:
    node.fault("no-devices", "")

    report = reset_sim()

    assert report.verdict is Verdict.UNKNOWN, report
    assert "there is no /dev/nvidia*" in report.reason


@pytest.mark.parametrize("tool", ["find", "grep"])
def test_without_the_tools_that_see_holders_nothing_is_killed(
    tool: str, node: SimNode, reset_sim: Reset
) -> None:
    procs = node.start(SGLANG)
    node.fault(f"no-{tool}", "")

    report = reset_sim()

    assert report.verdict is Verdict.UNKNOWN, report
    assert report.killed == ()
    assert all(node.alive(proc) for proc in procs)


@pytest.mark.parametrize("tool", ["id", "ls", "cat", "sort", "timeout", "flock", "sleep"])
def test_a_missing_tool_is_named_before_anything_is_touched(
    tool: str, node: SimNode, reset_sim: Reset
) -> None:
    procs = node.start(SGLANG)
    node.fault(f"no-{tool}", "")

    report = reset_sim()

    assert report.verdict is Verdict.UNKNOWN, report
    assert report.reason == f"{tool} is missing on the node"
    assert all(node.alive(proc) for proc in procs)


def test_without_fuser_the_scan_of_proc_finds_the_holders(node: SimNode, reset_sim: Reset) -> None:
    node.start((Proc("holder", ("/opt/app/trainer",), exe="trainer", memory={0: 40_000}),))
    node.fault("no-fuser", "")

    report = reset_sim()

    assert report.verdict is Verdict.CLEAN, report
    assert len(report.killed) == 1


def test_grace_sends_term_first_and_kill_only_to_the_deaf(node: SimNode, reset_sim: Reset) -> None:
    polite, deaf = node.start(
        (
            Proc("polite", ("python3", "polite.py"), memory={0: 100}),
            Proc("deaf", ("python3", "deaf.py"), memory={1: 100}, term="ignore"),
        )
    )

    report = reset_sim(grace_s=1.0)

    assert report.verdict is Verdict.CLEAN, report
    assert {line.pid: line.signal for line in report.killed} == {
        polite.pid: "TERM",
        deaf.pid: "KILL",
    }


def test_grace_ends_as_soon_as_all_are_gone(node: SimNode, reset_sim: Reset) -> None:
    node.start((Proc("polite", ("python3", "polite.py"), memory={0: 100}),))

    report = reset_sim(grace_s=15.0)

    assert report.verdict is Verdict.CLEAN, report
    assert report.elapsed_s < 10


def test_a_launcher_without_a_gpu_goes_with_its_worker(node: SimNode, reset_sim: Reset) -> None:
    """It keeps the server's port and starts workers again."""
    launcher, worker = node.start(
        (
            Proc("launcher", ("/opt/app/serve", "--port", "8000"), exe="serve"),
            Proc("worker", ("/opt/app/work",), exe="work", parent="launcher", memory={0: 700}),
        )
    )

    report = reset_sim()

    assert report.verdict is Verdict.CLEAN, report
    assert [(line.pid, line.rule) for line in report.killed] == [
        (launcher.pid, "ancestor"),
        (worker.pid, "holder"),
    ]


def test_what_comes_back_is_killed_again_and_then_dirty(node: SimNode, reset_sim: Reset) -> None:
    node.start((Proc("server", ("python3", "serve.py"), memory={0: 600}, respawn=0.2),))

    report = reset_sim()

    assert report.verdict is Verdict.DIRTY, report
    assert "came back after a kill" in report.reason
    assert 2 <= report.attempts <= 3
    assert report.survivors


def test_an_orphan_that_inherited_the_device_is_found(node: SimNode, reset_sim: Reset) -> None:
    """compute-apps names the dead parent; only the descriptors name the child."""
    node.start(
        (
            Proc("parent", ("/opt/app/main",), exe="main", memory={1: 4700}, dead=True),
            Proc("orphan", ("/opt/app/child",), exe="child", parent="parent", inherits=True),
        )
    )

    report = reset_sim()

    assert report.verdict is Verdict.CLEAN, report
    assert [line.command for line in report.killed] == ["/opt/app/child"]


def test_a_container_with_its_own_device_node_is_found(node: SimNode, reset_sim: Reset) -> None:
    """fuser compares device and inode of the host's node, so it misses such a holder."""
    node.start((Proc("inside", ("/app/serve",), exe="serve", memory={0: 900}, container=True),))

    report = reset_sim()

    assert report.verdict is Verdict.CLEAN, report
    assert len(report.killed) == 1


def test_a_zombie_is_no_obstacle(node: SimNode, reset_sim: Reset) -> None:
    node.start(
        (
            Proc("parent", ("/usr/sbin/thing",), exe="thing", owner="/system.slice/thing.service"),
            Proc("job", ("python3", "x.py"), memory={0: 5}),
        )
    )

    assert reset_sim().verdict is Verdict.CLEAN


def test_odd_names_and_command_lines_are_handled(node: SimNode, reset_sim: Reset) -> None:
    [odd] = node.start(
        (
            Proc(
                "odd",
                (b"python3", b"a\nb) S 1", b"\x1b[31m\xff", b"--api-key", b"s3cret"),
                comm=b"x) Z\n1 (y",
                memory={0: 10},
            ),
        )
    )

    report = reset_sim()

    assert report.verdict is Verdict.CLEAN, report
    [line] = report.killed
    assert line.pid == odd.pid
    assert line.command == "python3 a\\nb) S 1 \\x1b[31m\\xff --api-key ***"


def test_a_lock_held_by_another_run_skips_the_node(node: SimNode, reset_sim: Reset) -> None:
    procs = node.start(SGLANG)
    node.exec("mkdir -m 700 -p /run/gpufleet && echo 'run 42 by alice@ops1' > /run/gpufleet/lock")
    holder = "exec 9<>/run/gpufleet/lock; flock -n 9; sleep 60 & echo $! > /run/holder"
    node.exec(f"setsid sh -c '{holder}' >/dev/null 2>&1")

    report = reset_sim()

    assert report.verdict is Verdict.SKIPPED, report
    assert "run 42 by alice@ops1" in report.reason
    assert all(node.alive(proc) for proc in procs)


def test_a_lock_file_left_behind_blocks_nobody(node: SimNode, reset_sim: Reset) -> None:
    node.start((Proc("job", ("python3", "x.py"), memory={0: 5}),))
    node.exec("mkdir -m 700 -p /run/gpufleet && echo stale > /run/gpufleet/lock")

    assert reset_sim().verdict is Verdict.CLEAN


@pytest.mark.parametrize(
    "spoil",
    [
        "rm -rf /run/gpufleet; mkdir -m 755 /run/gpufleet",
        "rm -rf /run/gpufleet; mkdir -m 700 /run/gpufleet; chown 1000 /run/gpufleet",
        "rm -rf /run/gpufleet; ln -s /tmp /run/gpufleet",
        "rm -rf /run/gpufleet; echo > /run/gpufleet",
    ],
)
def test_a_working_folder_that_others_may_enter_is_refused(
    spoil: str, node: SimNode, reset_sim: Reset
) -> None:
    procs = node.start(SGLANG)
    node.exec(spoil)

    report = reset_sim()
    node.exec("rm -rf /run/gpufleet")

    assert report.verdict is Verdict.UNKNOWN, report
    assert "/run/gpufleet is not root's own folder with mode 0700" in report.reason
    assert all(node.alive(proc) for proc in procs)


def test_nothing_of_a_run_stays_on_the_node(node: SimNode, reset_sim: Reset) -> None:
    node.start(SGLANG)
    node.exec("rm -rf /run/gpufleet/acts")
    before = {p.pid for p in node.processes()}

    reset_sim()

    assert node.exec("ls /run/gpufleet").stdout.split() == ["acts", "lock"]
    assert len(node.exec("ls /run/gpufleet/acts").stdout.split()) == 1  # its name, done once
    time.sleep(0.2)  # sshd's own child takes a moment to end after the connection
    assert {p.pid for p in node.processes()} <= before


def test_a_job_of_the_scheduler_skips_the_node(node: SimNode, reset_sim: Reset) -> None:
    job = Proc(
        "step",
        ("python3", "train.py"),
        user="alice",
        memory={0: 900},
        owner="/system.slice/slurmstepd.scope/job_123/step_0/user/task_0",
    )
    [proc] = node.start((job,))

    report = reset_sim()

    assert report.verdict is Verdict.SKIPPED, report
    assert "job 123 of alice" in report.reason
    assert node.alive(proc)
    assert reset_sim(jobs="kill").verdict is Verdict.CLEAN
    assert not node.alive(proc)


def test_sixteen_busy_nodes_at_once_all_come_clean() -> None:
    with SimFleet(16, scene=SGLANG) as many:
        run = command_for({"GPUFLEET_INVENTORY": str(many.fleet_yaml)})
        ran = run("reset", "--hosts", "inference-pool", "--json")

        assert ran.code == 0, ran
        assert ran.json["summary"]["CLEAN"] == 16, ran
        for name, procs in many.running.items():
            assert not any(many[name].alive(proc) for proc in workload(procs))
            assert all(many[name].alive(proc) for proc in daemons(procs))
