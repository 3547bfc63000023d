"""The record of resets, as the command writes and reads it: over real nodes, with real faults."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.history import load_run
from tests.conftest import Command, command_for
from tests.simfleet import SGLANG, Proc, SimFleet, SimNode

DRAINING = Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=30)


def started(fleet: SimFleet, *arguments: str) -> subprocess.Popen[str]:
    """A reset that runs on its own; its record goes where this test's does."""
    return subprocess.Popen(
        [sys.executable, "-m", "gpufleet", "reset", "-i", str(fleet.fleet_yaml), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def await_act(node: SimNode) -> None:
    """Until a reset holds the node's lock, which it takes just before its first signal."""
    lock = node.path("/run/gpufleet/lock")
    deadline = time.monotonic() + 30
    while not (lock.exists() and lock.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)


def test_e06_the_failed_ones_again_until_none_is_left(fleet: SimFleet, gpufleet: Command) -> None:
    fleet["gpu02"].fault("gpu3", "[N/A]")
    fleet["gpu03"].stop_sshd()
    first = gpufleet("reset", "--hosts", "inference-pool", "--json")
    assert first.json["summary"]["CLEAN"] == 2

    fleet["gpu03"].start_sshd()
    second = gpufleet("reset", "--hosts", "@failed", "--json")

    verdicts = {host: node["verdict"] for host, node in second.nodes().items()}
    assert verdicts == {"gpu02": "UNKNOWN", "gpu03": "CLEAN"}
    told = f"@failed: gpu[02-03] in run {first.json['run_id']} ("
    assert second.err.startswith(told)
    assert "UTC, by root@" in second.err

    fleet["gpu02"].clear()
    third = gpufleet("reset", "--hosts", "@failed", "--json")
    assert {host: node["verdict"] for host, node in third.nodes().items()} == {"gpu02": "CLEAN"}

    fourth = gpufleet("reset", "--hosts", "@failed")
    assert (fourth.code, fourth.out) == (0, "")
    assert f"@failed: no node failed in run {third.json['run_id']}" in fourth.err
    again = gpufleet("status", "--hosts", f"@failed:{first.json['run_id']}", "--json")
    assert sorted(again.nodes()) == ["gpu02", "gpu03"]
    assert gpufleet("reset", "--hosts", "@failed", "--quiet").err == ""
    empty = gpufleet("reset", "--hosts", "@failed", "--json")
    assert (empty.code, empty.json["nodes"], empty.json["exit_code"]) == (0, [], 0)


def test_failed_nodes_are_a_set_like_any_other(fleet: SimFleet, gpufleet: Command) -> None:
    for name in ("gpu01", "gpu02", "gpu03"):
        fleet[name].fault("missing7", "")
    assert gpufleet("reset", "--hosts", "inference-pool").code == 1

    def named(*arguments: str) -> list[str]:
        ran = gpufleet("hosts", *arguments, "--json")
        return [host["host"] for host in ran.json["hosts"]]

    assert named("--hosts", "@failed", "-x", "gpu02") == ["gpu01", "gpu03"]
    assert named("--hosts", "@failed&gpu[02-04]") == ["gpu02", "gpu03"]
    assert named("--hosts", "@failed!gpu01", "--limit", "gpu01,gpu02") == ["gpu02"]
    assert named("--hosts", "inference-pool", "-x", "@failed") == ["gpu04"]
    assert named("--hosts", "gpu04&@failed") == []
    refused = gpufleet("reset", "--hosts", "gpu01!@failed")
    assert (refused.code, refused.err.splitlines()[-1]) == (
        2,
        'gpufleet: "gpu01!@failed" selects no hosts',
    )


def test_a_dry_run_and_a_look_leave_no_record(node: SimNode, gpufleet: Command) -> None:
    node.fault("missing7", "")
    assert gpufleet("reset", "--hosts", "gpu01").code == 1

    gpufleet("reset", "--hosts", "gpu02", "--dry-run")
    gpufleet("status", "--hosts", "gpu02")

    assert len(gpufleet("history", "--json").json["runs"]) == 1
    assert gpufleet("hosts", "--hosts", "@failed").out.count("gpu01") == 1


def test_a_failed_node_that_left_the_inventory_is_told(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    for name in ("gpu01", "gpu02"):
        fleet[name].fault("missing7", "")
    gpufleet("reset", "--hosts", "gpu[01-02]")
    smaller = tmp_path / "fleet.yaml"
    text = fleet.fleet_yaml.read_text()
    lines = [line for line in text.splitlines() if not line.strip().startswith("gpu01:")]
    smaller.write_text("\n".join(lines).replace("gpu[01-04]", "gpu[02-04]") + "\n")

    ran = gpufleet("hosts", "--hosts", "@failed", "-i", str(smaller), "--json")

    assert [host["host"] for host in ran.json["hosts"]] == ["gpu02"]
    assert f"@failed: left out: gpu01 failed and isn't in {smaller} any more" in ran.err


def test_another_machine_of_the_same_name_is_not_the_one_that_failed(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    """Two fleets, one record: the second inventory's gpu01 is another node."""
    fleet["gpu01"].fault("missing7", "")
    gpufleet("reset", "--hosts", "gpu01")
    procs = fleet["gpu04"].start(SGLANG)
    other = tmp_path / "fleet.yaml"
    addresses = (fleet["gpu01"].address, fleet["gpu04"].address)
    text = fleet.fleet_yaml.read_text().replace(*addresses)
    other.write_text(text.replace(f"gpu04: {addresses[1]}", f"gpu04: {addresses[0]}"))

    ran = gpufleet("reset", "--hosts", "@failed", "-i", str(other))

    assert (ran.code, ran.out) == (2, "")
    then, now = addresses
    assert ran.err.splitlines()[-1] == (
        f"gpufleet: @failed: gpu01 failed as {then}, and is {now} in {other}: select it by name"
    )
    assert all(fleet["gpu04"].alive(proc) for proc in procs)


def test_e10_the_record_names_the_person_and_all_that_was_killed(
    fleet: SimFleet, node: SimNode, gpufleet: Command, state: Path
) -> None:
    node.start(
        (
            Proc("one", ("python3", "train.py", "--api-key", "sk-geheim"), "python3", "ml"),
            Proc("two", ("python3", "eval.py"), "python3", "ml", memory={1: 500}),
        )
    )
    environment = {**os.environ, "SUDO_USER": "ops"}
    log = state.parent / "run.log"

    arguments = ("reset", "--hosts", "gpu01", "--json", "--log-file", str(log))
    ran = gpufleet(*arguments, "--protect", "password=geheim", env=environment)

    [run] = gpufleet("history", "--json").json["runs"]
    assert run["person"] == "ops (as root)"
    assert run["control_host"] == os.uname().nodename
    assert (run["selection"], run["exit_code"], run["state"]) == ("gpu01", 0, "finished")
    assert run["started"].endswith("Z")
    with sqlite3.connect(state / "history.db") as database:
        database.row_factory = sqlite3.Row
        [row] = database.execute("SELECT * FROM nodes").fetchall()
    database.close()
    killed = json.loads(row["killed"])
    assert {(line["user"], line["command"]) for line in killed} == {
        ("ml", "python3 train.py --api-key ***"),
        ("ml", "python3 eval.py"),
    }
    assert (row["verdict"], row["attempts"]) == ("CLEAN", 1)
    assert row["started"] <= row["acted"] <= row["finished"]
    assert json.loads(row["memory_before_mib"])["1"] == 500
    assert json.loads(row["memory_after_mib"])["1"] == 0
    assert load_run("last") == ran.json
    assert b"geheim" not in (state / "history.db").read_bytes() + log.read_bytes()
    assert stat.S_IMODE((state / "history.db").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    shown = gpufleet("history", run["run_id"][:-2]).out
    assert "by         ops (as root)@" in shown
    assert "python3 train.py --api-key ***" in shown
    document = gpufleet("history", "last", "--json").json
    assert document.pop("record")["person"] == "ops (as root)"
    assert document == ran.json


def test_a_run_killed_in_mid_act_leaves_the_truth_behind(
    fleet: SimFleet, gpufleet: Command
) -> None:
    """gpu01 is done, gpu02 in its act, gpu03 not begun; the next run works at once."""
    node = fleet["gpu02"]
    node.path("/run/gpufleet/lock").unlink(missing_ok=True)
    node.start((DRAINING,))
    process = started(fleet, "--hosts", "gpu[01-03]", "--parallel", "1")
    await_act(node)
    [running] = gpufleet("history", "--json").json["runs"]
    assert running["state"] == "running"
    assert "still going on: nodes without a result" in gpufleet("history", "last").out
    assert gpufleet("hosts", "--hosts", "@failed").code == 2

    process.kill()
    process.communicate(timeout=30)

    [run] = gpufleet("history", "--json").json["runs"]
    assert (run["state"], run["finished"], run["exit_code"]) == ("unfinished", None, None)
    document = load_run(run["run_id"])
    verdicts = {node["host"]: node["verdict"] for node in document["nodes"]}
    assert verdicts == {"gpu01": "CLEAN", "gpu02": "UNKNOWN", "gpu03": "NOT STARTED"}
    assert "state not verified" in document["nodes"][1]["reason"]
    assert "unfinished: 1 CLEAN, 1 UNKNOWN, 1 NOT STARTED" in gpufleet("history").out
    assert "gpu02  UNKNOWN" in gpufleet("history", "last").out

    node.clear()
    ran = gpufleet("reset", "--hosts", "@failed", "--json")
    assert {host: node["verdict"] for host, node in ran.nodes().items()} == {
        "gpu02": "CLEAN",
        "gpu03": "CLEAN",
    }
    assert ", which never ended)" in ran.err


def test_an_interrupted_run_is_finished_in_the_record(fleet: SimFleet, gpufleet: Command) -> None:
    node = fleet["gpu01"]
    node.path("/run/gpufleet/lock").unlink(missing_ok=True)
    node.start((DRAINING,))
    process = started(fleet, "--hosts", "gpu[01-02]", "--parallel", "1")
    await_act(node)
    time.sleep(0.5)

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)

    [run] = gpufleet("history", "--json").json["runs"]
    assert (run["state"], run["exit_code"]) == ("finished", 143)
    assert (run["summary"]["UNKNOWN"], run["summary"]["NOT STARTED"]) == (1, 1)


def test_e01_two_runs_at_once_are_two_records(fleet: SimFleet, gpufleet: Command) -> None:
    """The lock on the node decides; the second run skips that node and does the other."""
    node = fleet["gpu01"]
    node.path("/run/gpufleet/lock").unlink(missing_ok=True)
    node.start((Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=8),))
    late = fleet["gpu02"].start(SGLANG)
    first = started(fleet, "--hosts", "gpu01", "--quiet")
    await_act(node)

    second = gpufleet("reset", "--hosts", "gpu[01-02]", "--json")
    out, err = first.communicate(timeout=60)

    assert (first.returncode, out, err) == (0, "", "")
    assert second.code == 4
    nodes = second.nodes()
    assert (nodes["gpu01"]["verdict"], nodes["gpu02"]["verdict"]) == ("SKIPPED", "CLEAN")
    assert "another reset holds this node: run 2" in nodes["gpu01"]["reason"]
    assert " by root@" in nodes["gpu01"]["reason"]
    assert not [proc for proc in late[5:] if fleet["gpu02"].alive(proc)]
    newer, older = gpufleet("history", "--json").json["runs"]
    assert (newer["run_id"], newer["exit_code"]) == (second.json["run_id"], 4)
    assert (older["exit_code"], older["summary"]["CLEAN"]) == (0, 1)
    assert load_run(newer["run_id"]) == second.json
    assert [node["host"] for node in load_run(older["run_id"])["nodes"]] == ["gpu01"]


def refused_record(ran_err: str) -> str:
    """The one warning of a run without a record, without its beginning."""
    [line] = ran_err.splitlines()
    assert line.startswith("gpufleet: warning: no full record of this run: ")
    return line


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with a little room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "disk", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_one_warning_and_costs_no_verdict(
    node: SimNode, fleet: SimFleet, small_disk: Path
) -> None:
    node.start(SGLANG)
    (small_disk / "other").write_bytes(b"x" * (256 << 10))
    command = command_for(
        {"GPUFLEET_INVENTORY": str(fleet.fleet_yaml), "GPUFLEET_STATE": str(small_disk)}
    )

    log = str(small_disk / "log")
    ran = command("reset", "--hosts", "gpu01", "--json", "--log-file", log)

    assert (ran.code, ran.nodes()["gpu01"]["verdict"]) == (0, "CLEAN")
    by_kind = sorted(line.split(" of this run")[0] for line in ran.err.splitlines())
    assert by_kind == ["gpufleet: warning: no full log", "gpufleet: warning: no full record"]


def test_a_read_only_disk_is_one_warning(fleet: SimFleet, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    command = command_for(
        {"GPUFLEET_INVENTORY": str(fleet.fleet_yaml), "GPUFLEET_STATE": str(small_disk)}
    )
    metrics = str(small_disk / "gpufleet.prom")

    ran = command("reset", "--hosts", "gpu01", "--quiet", "--metrics-file", metrics)

    record, metrics_line = ran.err.splitlines()
    assert (ran.code, ran.out) == (0, "")
    assert "Read-only file system" in refused_record(record)
    assert (
        metrics_line
        == f"gpufleet: warning: no metrics of this run: {metrics}: Read-only file system"
    )


def test_a_damaged_record_is_one_warning_and_left_as_it_is(
    fleet: SimFleet, gpufleet: Command, state: Path
) -> None:
    state.mkdir()
    damaged = state / "history.db"
    damaged.write_bytes(b"no database at all, " * 500)

    ran = gpufleet("reset", "--hosts", "gpu01", "--quiet")

    assert (ran.code, ran.out) == (0, "")
    assert f"move it away: mv {damaged} {damaged}.damaged" in refused_record(ran.err)
    assert damaged.read_bytes() == b"no database at all, " * 500
    read = gpufleet("reset", "--hosts", "@failed")
    assert (read.code, read.out) == (2, "")
    assert read.err.startswith(f"gpufleet: {damaged}: can't be read: ")


def test_a_record_that_another_holds_is_waited_for_once_and_briefly(
    fleet: SimFleet, gpufleet: Command, state: Path
) -> None:
    assert gpufleet("reset", "--hosts", "gpu02").code == 0
    database = sqlite3.connect(state / "history.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    fleet["gpu01"].start(SGLANG)

    ran = gpufleet("reset", "--hosts", "gpu01", "--quiet")
    database.close()

    assert (ran.code, ran.out) == (0, "")
    assert "slow or locked by another run" in refused_record(ran.err)
    assert gpufleet("reset", "--hosts", "gpu03").err == ""


@pytest.mark.parametrize("kind", ["link", "foreign", "open"])
def test_a_place_that_others_could_have_made_is_not_written(
    kind: str, fleet: SimFleet, gpufleet: Command, state: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    state.mkdir()
    if kind == "link":
        (state / "history.db").symlink_to(precious)
    elif kind == "foreign":
        os.chown(state, 65534, 65534)
    else:
        state.chmod(0o777)

    ran = gpufleet("reset", "--hosts", "gpu01", "--quiet")

    assert (ran.code, ran.out) == (0, "")
    refused_record(ran.err)
    assert precious.read_bytes() == b""
    assert [path.name for path in state.iterdir()] == (["history.db"] if kind == "link" else [])


def test_what_was_refused_leaves_no_record(gpufleet: Command, fleet: SimFleet) -> None:
    assert gpufleet("reset", "--hosts", "gpu01", "--parallel", "0").code == 2
    refused = gpufleet("reset", "--hosts", "gpu01", "--keep-history", "soon")

    assert refused.code == 2
    assert refused.err == 'gpufleet: --keep-history: read "soon": a number of days, like 90d\n'
    assert gpufleet("history", "--json").json["runs"] == []


def test_old_runs_are_deleted_when_a_new_one_ends(
    fleet: SimFleet, gpufleet: Command, state: Path
) -> None:
    gpufleet("reset", "--hosts", "gpu01")
    gpufleet("reset", "--hosts", "gpu02")
    with sqlite3.connect(state / "history.db") as database:
        database.execute("UPDATE runs SET started = '2020-01-01' WHERE selection = 'gpu01'")
    database.close()

    gpufleet("reset", "--hosts", "gpu03", "--keep-history", "0")
    assert len(gpufleet("history", "--json").json["runs"]) == 3
    gpufleet("reset", "--hosts", "gpu03")

    left = gpufleet("history", "--json").json["runs"]
    assert [run["selection"] for run in left] == ["gpu03", "gpu03", "gpu02"]
    with sqlite3.connect(state / "history.db") as database:
        assert database.execute("SELECT count(*) FROM nodes").fetchone() == (3,)
    database.close()


def test_the_record_of_root_is_shared_with_whom_its_owner_lets_read_it(fleet: SimFleet) -> None:
    """Without $GPUFLEET_STATE: /var/lib/gpufleet, here one of a mount namespace of its own."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        lib, inventory = place / "lib", place / "fleet.yaml"
        lib.mkdir()
        inventory.write_text(fleet.fleet_yaml.read_text())
        inventory.chmod(0o644)

        def as_user(uid: int, *arguments: str) -> subprocess.CompletedProcess[str]:
            inside = (
                f'mount --bind {lib} /var/lib && exec setpriv --reuid={uid} --clear-groups "$@"'
            )
            command = [sys.executable, "-m", "gpufleet", *arguments, "-i", str(inventory)]
            return subprocess.run(
                ["unshare", "--mount", "sh", "-c", inside, "sh", *command],
                env={"PATH": "/usr/bin:/bin", "HOME": name},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        fleet["gpu02"].fault("missing7", "")
        assert as_user(0, "reset", "--hosts", "inference-pool").returncode == 1
        alone = as_user(65534, "hosts", "--hosts", "@failed")
        (lib / "gpufleet").chmod(0o755)
        (lib / "gpufleet/history.db").chmod(0o644)
        shared = as_user(65534, "hosts", "--hosts", "@failed")

        if "Permission denied" in alone.stderr + shared.stderr:
            pytest.skip("another user can't read this Python or this source")
        assert alone.returncode == 2
        assert "@failed: no reset that has ended is recorded" in alone.stderr
        assert shared.returncode == 0, shared
        assert "gpu02" in shared.stdout
        assert ", by root@" in shared.stderr
