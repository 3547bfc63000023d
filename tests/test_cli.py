"""The command as people and cron run it: exit codes, streams, and what is refused before a connection."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Command, command_for
from tests.simfleet import IDLE, SGLANG, Proc, SimFleet, SimNode

DRAINING = Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=30)


def test_e04_one_node_down_costs_the_others_nothing(fleet: SimFleet, gpufleet: Command) -> None:
    for node in fleet:
        node.start(SGLANG)
    fleet["gpu02"].stop_sshd()

    ran = gpufleet("reset", "--hosts", "inference-pool", "--json")

    nodes = ran.nodes()
    assert ran.code == 3
    assert {host: node["verdict"] for host, node in nodes.items()} == {
        "gpu01": "CLEAN",
        "gpu02": "UNREACHABLE",
        "gpu03": "CLEAN",
        "gpu04": "CLEAN",
    }
    assert nodes["gpu02"]["stage"] == "connect"
    assert "connection refused" in nodes["gpu02"]["reason"]
    assert nodes["gpu02"]["next_step"].startswith("ssh -p ")
    assert ran.json["summary"] == {
        "CLEAN": 3,
        "DIRTY": 0,
        "BROKEN": 0,
        "UNKNOWN": 0,
        "UNREACHABLE": 1,
        "SKIPPED": 0,
        "NOT STARTED": 0,
    }


def test_the_table_names_each_node_and_counts_at_the_end(
    fleet: SimFleet, gpufleet: Command
) -> None:
    fleet["gpu01"].start(SGLANG)
    fleet["gpu02"].fault("missing7", "")

    ran = gpufleet("reset", "--hosts", "gpu[01-02]")

    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[0].split() == ["NODE", "VERDICT", "GPUS", "KILLED", "SPARED", "SECONDS"]
    assert lines[1].split()[:2] == ["gpu01", "CLEAN"]
    assert "8 × 0 MiB" in lines[1]
    assert lines[2].split()[:2] == ["gpu02", "BROKEN"]
    assert lines[3] == "    why: 7 of 8 GPUs reported, missing 7"
    assert lines[4].startswith("    next: ssh -p ")
    assert lines[-1].startswith("2 nodes: 1 CLEAN, 1 BROKEN (")
    assert ran.err == ""
    assert "\x1b" not in ran.out


def test_e08_quiet_says_nothing_when_all_is_well(fleet: SimFleet, gpufleet: Command) -> None:
    ran = gpufleet("reset", "--hosts", "inference-pool", "--quiet")

    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_e08_quiet_names_only_the_nodes_that_failed(fleet: SimFleet, gpufleet: Command) -> None:
    fleet["gpu03"].fault("gpu3", "[N/A]")

    ran = gpufleet("reset", "--hosts", "inference-pool", "--quiet")

    assert ran.code == 3
    assert "gpu03  UNKNOWN" in ran.out
    assert "gpu01" not in ran.out


def test_it_runs_as_cron_runs_it(fleet: SimFleet, node: SimNode, gpufleet: Command) -> None:
    node.start(SGLANG)
    bare = {"PATH": "/usr/bin:/bin", "LANG": "C"}

    ran = gpufleet("reset", "--hosts", "gpu01", env=bare, cwd="/")

    assert ran.code == 0, ran
    assert ran.err == ""


def test_it_runs_with_standard_input_closed(node: SimNode, fleet: SimFleet) -> None:
    node.start(SGLANG)
    command = f"exec {sys.executable} -m gpufleet reset --hosts gpu01 -i {fleet.fleet_yaml} <&-"

    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done
    assert done.stderr == ""


def test_status_says_busy_and_then_idle(node: SimNode, gpufleet: Command) -> None:
    procs = node.start(SGLANG)

    busy = gpufleet("status", "--hosts", "gpu01", "--json")

    report = busy.nodes()["gpu01"]
    assert (busy.code, report["verdict"]) == (0, "BUSY")
    assert len(report["would_kill"]) == 10
    assert report["killed"] == []
    assert all(node.alive(proc) for proc in procs)

    node.clear()
    node.start(IDLE)
    idle = gpufleet("status", "--hosts", "gpu01", "--json")
    assert (idle.code, idle.nodes()["gpu01"]["verdict"]) == (0, "IDLE")


def test_status_works_without_root_and_says_what_it_cannot_see(
    fleet: SimFleet, node: SimNode, gpufleet: Command, tmp_path: Path
) -> None:
    node.start(SGLANG)
    own = tmp_path / "fleet.yaml"
    own.write_text(fleet.fleet_yaml.read_text().replace("user: root", "user: ml"))

    ran = gpufleet("status", "--hosts", "gpu01", "--json", "-i", str(own))

    report = ran.nodes()["gpu01"]
    assert report["verdict"] == "BUSY"
    assert any("not root" in warning for warning in report["warnings"])


def test_reset_without_root_is_unreachable_and_kills_nothing(
    fleet: SimFleet, node: SimNode, gpufleet: Command, tmp_path: Path
) -> None:
    procs = node.start(SGLANG)
    own = tmp_path / "fleet.yaml"
    own.write_text(fleet.fleet_yaml.read_text().replace("user: root", "user: ml"))

    ran = gpufleet("reset", "--hosts", "gpu01", "--json", "-i", str(own))

    report = ran.nodes()["gpu01"]
    assert ran.code == 3
    assert (report["verdict"], report["stage"]) == ("UNREACHABLE", "privilege")
    assert all(node.alive(proc) for proc in procs)


def test_check_is_ready_and_changes_nothing(node: SimNode, gpufleet: Command) -> None:
    procs = node.start(SGLANG)

    ran = gpufleet("check", "--hosts", "gpu01", "--json")

    assert (ran.code, ran.nodes()["gpu01"]["verdict"]) == (0, "READY")
    assert all(node.alive(proc) for proc in procs)


def test_check_names_a_missing_tool(node: SimNode, gpufleet: Command) -> None:
    node.fault("no-fuser", "")

    ran = gpufleet("check", "--hosts", "gpu01", "--json")

    assert ran.code == 3
    assert ran.nodes()["gpu01"]["reason"] == "missing on the node: fuser"


def test_hosts_shows_what_a_selection_means(fleet: SimFleet, gpufleet: Command) -> None:
    ran = gpufleet("hosts", "--hosts", "gpu[02-03]", "--json")

    assert [host["host"] for host in ran.json["hosts"]] == ["gpu02", "gpu03"]
    assert ran.json["hosts"][0]["groups"] == ["inference-pool"]
    assert gpufleet("hosts").out.count("inference-pool") == 4


INVENTORY = """\
defaults: {identity_file: /nonexistent}
hosts:
  gpu[01-02]: {address: "192.0.2.[1-2]"}
groups:
  pool: gpu[01-02]
  spare:
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "gpu99"], 'gpufleet: unknown host or group "gpu99"'),
        (["--hosts", "@pol"], 'gpufleet: unknown group "pol" (did you mean pool?)'),
        (["--hosts", ""], "gpufleet: the selection is empty: name hosts or groups, or all"),
        (["--hosts", "spare"], "gpufleet: group spare has no hosts"),
        (
            ["--hosts", "pool", "-x", "pool"],
            'gpufleet: "pool" with --exclude pool selects no hosts',
        ),
        (["--hosts", "all"], "gpufleet: --hosts all without a terminal needs --yes"),
        ([], "gpufleet: Missing option '-H' / '--hosts'."),
        (["--hosts", "pool", "--nonsense"], "gpufleet: No such option: --nonsense"),
        (["--hosts", "pool", "--parallel", "0"], "gpufleet: --parallel 0: at least 1"),
    ],
)
def test_what_cannot_be_carried_out_is_one_line_and_exit_2(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(INVENTORY)
    path.chmod(0o644)

    ran = command_for({"GPUFLEET_INVENTORY": str(path)})("reset", *arguments)

    assert (ran.code, ran.out, ran.err) == (2, "", message + "\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hosts:\n  gpu01: {address: '192.0.2.1}\n", ["fleet.yaml:2"]),
        ("hosts:\n\tgpu01: 192.0.2.1\n", ["fleet.yaml:2", "tab"]),
        ("hosts: {gpu01: 192.0.2.1}\nhots: {}\n", ["fleet.yaml:2", '"hots"', "did you mean hosts"]),
        ("hosts:\n  gpu01: 192.0.2.1\n  gpu01: 192.0.2.2\n", ["fleet.yaml:3", "gpu01", "2"]),
        ("hosts:\n  gpu01: {address: 192.0.2.1, port: 70000}\n", ["fleet.yaml:2", '"70000"']),
        ("", ["fleet.yaml", "no hosts"]),
    ],
)
def test_a_broken_inventory_is_one_line_with_its_place_and_exit_2(
    text: str, words: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    path.chmod(0o644)

    ran = command_for({"GPUFLEET_INVENTORY": str(path)})("reset", "--hosts", "gpu01")

    assert ran.code == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1
    assert all(word in ran.err for word in words), ran.err


def test_a_missing_inventory_names_where_it_looked(tmp_path: Path) -> None:
    ran = command_for({})("reset", "--hosts", "x", "-i", str(tmp_path / "none.yaml"))

    assert ran.code == 2
    assert ran.err == f"gpufleet: {tmp_path}/none.yaml: can't be read: No such file or directory\n"


def test_version_and_help_of_each_command() -> None:
    run = command_for({})

    assert re.fullmatch(r"gpufleet \d+\.\d+\.\d+\n", run("--version").out)
    for command in ("reset", "status", "check", "hosts"):
        shown = run(command, "--help")
        assert shown.code == 0
        assert f"Usage: gpufleet {command}" in shown.out
    bare = run()
    assert (bare.code, bare.out) == (2, "")
    assert "Usage: gpufleet" in bare.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_e03_an_interrupted_run_stops_everywhere_and_still_reports(
    number: signal.Signals, fleet: SimFleet
) -> None:
    """gpu01 is done, gpu02 waits for memory, gpu03 and gpu04 never start."""
    lock = fleet["gpu02"].path("/run/gpufleet/lock")
    lock.unlink(missing_ok=True)
    fleet["gpu02"].start((DRAINING,))
    later = fleet["gpu03"].start(SGLANG)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gpufleet", "reset", "--hosts", "inference-pool", "--json"),
            *("--parallel", "1", "-i", str(fleet.fleet_yaml)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + 20
    while not (lock.exists() and lock.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)

    started = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)

    nodes = {node["host"]: node for node in json.loads(out)["nodes"]}
    assert process.returncode == 128 + number
    assert time.monotonic() - started < 10
    assert "Traceback" not in err
    assert {host: node["verdict"] for host, node in nodes.items()} == {
        "gpu01": "CLEAN",
        "gpu02": "UNKNOWN",
        "gpu03": "NOT STARTED",
        "gpu04": "NOT STARTED",
    }
    assert nodes["gpu02"]["reason"] == "interrupted: state not verified"
    assert all(fleet["gpu03"].alive(proc) for proc in later)
    time.sleep(1.5)  # the script on gpu02 ends by its next heartbeat
    assert not [p for p in fleet["gpu02"].processes() if p.args[:2] == (b"/bin/sh", b"-s")]


def test_the_reader_going_away_is_no_traceback(fleet: SimFleet) -> None:
    command = f"{sys.executable} -m gpufleet hosts -i {fleet.fleet_yaml} | true"

    piped = f"{command}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.returncode in {0, 141}  # 0: it was read before the reader went


def test_a_usage_error_that_cannot_be_told_is_one_all_the_same() -> None:
    command = f"{sys.executable} -m gpufleet reset 2>/dev/full"

    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")


def test_a_signal_that_was_ignored_from_the_start_stays_ignored(fleet: SimFleet) -> None:
    """As under nohup, and for the background jobs of a script."""
    fleet["gpu01"].start((Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=3),))
    words = f"{sys.executable} -m gpufleet reset --hosts gpu01 --json -i {fleet.fleet_yaml}"
    process = subprocess.Popen(
        ["sh", "-c", f"trap '' HUP; exec {words}"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    time.sleep(2.5)
    process.send_signal(signal.SIGHUP)

    out, _ = process.communicate(timeout=40)

    assert process.returncode == 0
    assert json.loads(out)["nodes"][0]["verdict"] == "CLEAN"


@pytest.mark.parametrize("arguments", [["hosts"], ["reset", "--hosts", "gpu01", "--json"]])
def test_a_result_that_cannot_be_written_is_one_line_and_no_success(
    arguments: list[str], fleet: SimFleet, gpufleet: Command
) -> None:
    words = " ".join([sys.executable, "-m", "gpufleet", *arguments, "-i", str(fleet.fleet_yaml)])

    done = subprocess.run(
        ["sh", "-c", f"{words} >/dev/full"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 3
    assert done.stderr == "gpufleet: the result could not be written: No space left on device\n"


def test_a_silent_node_does_not_hold_up_an_interrupt(fleet: SimFleet) -> None:
    fleet["gpu01"].freeze_sshd()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gpufleet", "reset", "--hosts", "gpu01", "--json"),
            *("-i", str(fleet.fleet_yaml)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    time.sleep(3)

    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert time.monotonic() - started < 8
    assert json.loads(out)["nodes"][0]["verdict"] == "NOT STARTED"
    assert err == ""


def test_each_retry_is_told_with_its_cause(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    fleet["gpu01"].freeze_sshd()
    own = tmp_path / "fleet.yaml"
    text = fleet.fleet_yaml.read_text().replace("defaults:", "defaults:\n  connect_timeout: 1s", 1)
    own.write_text(text)

    ran = gpufleet("reset", "--hosts", "gpu01", "-v", "-i", str(own))

    assert ran.code == 3
    lines = ran.err.splitlines()
    assert lines
    why = "no answer during the SSH handshake in 1 s: connected, but sshd says nothing"
    pattern = rf"gpu01: try \d: {why}; next in \d\.\d s"
    assert all(re.fullmatch(pattern, line) for line in lines), ran.err
    assert "no answer during the SSH handshake" in ran.out
