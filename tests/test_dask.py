"""Dask as engine: workers that die and come, and clusters that can't be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.model import Verdict
from gpufleet.run import new_run_id
from gpufleet.run.task import Task, perform, stop_run
from tests.conftest import Command, spec_of
from tests.daskcluster import DaskCluster
from tests.simfleet import IDLE, SGLANG, Proc, RunningProcess, SimFleet, SimNode

NEW = Proc("new", ("python3", "new.py"), memory={1: 500})
SERVER = tuple(proc for proc in SGLANG if proc not in IDLE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[DaskCluster]:
    with DaskCluster(workers=2, threads=3) as running:
        yield running


def dask(address: str) -> tuple[str, ...]:
    return "--engine", "dask", "--scheduler", address


def said(node: SimNode) -> bool:
    """Has an act on it given its whole answer?"""
    return any(node.path("/run/gpufleet/acts").glob("*.said"))


def test_workers_die_and_come_and_no_node_is_acted_on_twice(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    """The oracle is on the nodes: what their owners start once the act is done must live on.

    A worker is killed while some of its nodes are past their act and not yet reported (`after` takes
    its time), so that Dask has another worker do them again; and one is added.
    """
    names = [f"c{number}" for number in range(6)]
    with SimFleet(names=names, folder=tmp_path / "fleet") as fleet:
        old = {node.name: node.start(SERVER) for node in fleet}
        inventory = tmp_path / "fleet.yaml"
        text = fleet.fleet_yaml.read_text()
        inventory.write_text(text.replace("defaults:\n", "defaults:\n  after: sleep 3\n", 1))
        inventory.chmod(0o600)
        began = time.monotonic()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gpufleet", "reset", "-H", "all", "--yes", "--json"),
                *("-i", str(inventory), *dask(cluster.address)),
            ],
            env={**os.environ, **cluster.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        new: dict[str, RunningProcess] = {}
        killed = 0
        while process.poll() is None and time.monotonic() - began < 200:
            for node in fleet:
                if node.name not in new and said(node):
                    [new[node.name]] = node.start((NEW,))
            if not killed and len(new) >= 3:
                killed = cluster.workers()[0]
                os.kill(killed, signal.SIGKILL)
                cluster.add()
            time.sleep(0.02)
        out, _ = process.communicate(timeout=10)

        report = json.loads(out)
        told = {node["host"]: node for node in report["nodes"]}
        assert killed
        assert list(told) == names  # one verdict each, in order
        assert {node["verdict"] for node in told.values()} == {"CLEAN"}, told
        assert process.returncode == 0
        again = [n for n in told.values() if "another worker of this run" in str(n["warnings"])]
        assert again  # it did happen
        for node in fleet:
            assert not any(node.alive(proc) for proc in old[node.name]), node.name
            assert node.alive(new[node.name]), node.name
            acts = sorted(path.name for path in node.path("/run/gpufleet/acts").iterdir())
            assert acts == [f"{report['run_id']}.1", f"{report['run_id']}.1.said"]


def test_a_worker_uses_its_own_keys_and_says_who_could_not_reach_a_node(
    cluster: DaskCluster, gpufleet: Command, fleet: SimFleet, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(fleet.identity_file.read_bytes())
    locked.chmod(0o600)
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(locked)]
    subprocess.run(change, check=True)
    inventory = tmp_path / "locked.yaml"
    inventory.write_text(
        fleet.fleet_yaml.read_text().replace(str(fleet.identity_file), str(locked))
    )
    inventory.chmod(0o600)

    ran = gpufleet(
        *("status", "-H", "gpu01", "-i", str(inventory), "--json", *dask(cluster.address)),
        env={**os.environ, **cluster.environment},
    )

    told = ran.nodes()["gpu01"]
    assert (ran.code, told["verdict"]) == (3, "UNREACHABLE")
    assert "needs a passphrase and no agent holds it" in told["reason"]
    assert "(seen from worker " in told["reason"]


PATCHED = """
import sys
import gpufleet.run.cluster as c
{patch}
sys.argv[0] = "gpufleet"
from gpufleet.__main__ import main
main()
"""


def started(
    patch: str, fleet: SimFleet, address: str, environment: dict[str, str]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-c", PATCHED.format(patch=patch), "reset", "-H", "inference-pool"),
            *("--json", "-i", str(fleet.fleet_yaml), *dask(address)),
        ],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def patched(
    patch: str, fleet: SimFleet, address: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    process = started(patch, fleet, address, environment)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_a_cluster_that_is_gone_ends_the_run_with_a_verdict_for_each(fleet: SimFleet) -> None:
    locks = [node.path("/run/gpufleet/lock") for node in fleet]
    for node, lock in zip(fleet, locks, strict=True):
        lock.unlink(missing_ok=True)
        node.start((Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=60),))
    with DaskCluster(workers=1, threads=3) as dying:
        process = started("c._CONNECT_S = 2", fleet, dying.address, dying.environment)
        deadline = time.monotonic() + 30
        while sum(lock.exists() for lock in locks) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        dying.kill()
        out, err = process.communicate(timeout=90)

    nodes = json.loads(out)["nodes"]
    assert [node["verdict"] for node in nodes] == ["UNKNOWN"] * 4
    assert process.returncode == 3
    assert {node["reason"] for node in nodes[:3]} == {
        "Dask gave the task up, as it does when it loses its scheduler: state not verified"
    }
    assert nodes[3]["reason"].endswith(("verified", "the Dask scheduler is gone: nothing was done"))
    assert err == ""


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("c.__version__ = '9.9'", "gpufleet 0.1.0 there, 9.9 here: pip install gpufleet==9.9"),
        (
            "import only_here\nc.version = only_here.version",
            "gpufleet can't be loaded there (",
        ),
        ("sys.modules['distributed'] = None", "Dask isn't installed: pip install 'gpufleet[dask]'"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(
    patch: str, words: str, cluster: DaskCluster, fleet: SimFleet, tmp_path: Path
) -> None:
    procs = fleet["gpu01"].start(SGLANG)
    (tmp_path / "only_here.py").write_text("def version(): ...\n")
    environment = {**cluster.environment, "PYTHONPATH": str(tmp_path)}

    done = patched(patch, fleet, cluster.address, environment)

    assert (done.returncode, done.stdout) == (2, ""), done
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert all(fleet["gpu01"].alive(proc) for proc in procs)


def test_a_scheduler_without_workers_certificate_or_life(fleet: SimFleet) -> None:
    with DaskCluster(workers=0) as empty:
        none = patched("", fleet, empty.address, empty.environment)
        bare = patched("", fleet, empty.address, {})
        gone = patched("c._CONNECT_S = 1", fleet, "tls://127.0.0.1:1", empty.environment)
        missing = {name: f"{path}.not" for name, path in empty.environment.items()}
        lost = patched("", fleet, empty.address, missing)
        with DaskCluster(workers=0) as other:
            foreign = patched("", fleet, empty.address, other.environment)

    assert "it has no workers" in none.stderr
    for done in (bare, lost, foreign):
        assert "DASK_DISTRIBUTED__COMM__TLS__CA_FILE" in done.stderr
    assert "the scheduler can't be reached" in gone.stderr
    for done in (none, bare, gone, lost, foreign):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done


def test_a_worker_that_hangs_is_named_before_anything_is_done(fleet: SimFleet) -> None:
    procs = fleet["gpu01"].start(SGLANG)
    with DaskCluster(workers=2) as hanging:
        stopped = hanging.workers()[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            done = patched("c._CONNECT_S = 2", fleet, hanging.address, hanging.environment)
        finally:
            os.kill(stopped, signal.SIGCONT)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert "worker tls://127.0.0.1:" in done.stderr
    assert "no answer within 2 s: restart or end it" in done.stderr
    assert all(fleet["gpu01"].alive(proc) for proc in procs)


def test_a_stop_holds_for_what_a_worker_is_handed_later(fleet: SimFleet, node: SimNode) -> None:
    """A task may wait at the scheduler, or be taken over from a worker that died, when ^C comes; and
    another run may have closed the desk meanwhile."""
    procs = node.start(SGLANG)
    run_id = new_run_id()
    stop_run(run_id, signal.SIGTERM)

    report = perform(Task("reset", run_id), spec_of(fleet, node))

    assert report.verdict is Verdict.NOT_STARTED
    assert all(node.alive(proc) for proc in procs)
    assert perform(Task("reset", new_run_id()), spec_of(fleet, node)).verdict is Verdict.CLEAN


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scheduler", "tcp://h:8786"), "--engine dask and --scheduler"),
        (("--engine", "dask"), "--engine dask and --scheduler"),
        (("--engine", "ray"), 'read "ray": local or dask'),
        (dask("tcp://dask1:8786"), "only TLS is used"),
        (dask("dask1:8786"), "an address like tls://dask1:8786"),
        (dask("tls://dask1"), "an address like tls://dask1:8786"),
        ((*dask("tls://dask1:8786"), "--processes", "2"), "--processes is for --engine local"),
    ],
)
def test_options_that_do_not_go_together(
    options: tuple[str, ...], words: str, gpufleet: Command
) -> None:
    ran = gpufleet("reset", "-H", "inference-pool", *options)

    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "check", "restore"])
def test_all_commands_have_the_engines(command: str, gpufleet: Command) -> None:
    ran = gpufleet(command, "-H", "inference-pool", *dask("tcp://dask1:8786"))

    assert (ran.code, ran.out) == (2, "")
    assert "only TLS is used" in ran.err
