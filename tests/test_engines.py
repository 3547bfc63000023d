"""The main job is the same wherever its nodes are worked on: threads, processes, Dask."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import Command, Ran, command_for
from tests.daskcluster import DaskCluster
from tests.simfleet import IDLE, SGLANG, Proc, SimFleet

POOL = ("gpu01", "gpu02", "gpu03", "gpu04")
DRAINING = Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=60)


@dataclass(frozen=True)
class Way:
    """How a command is told where to work, and what it finds in its environment."""

    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module", params=["threads", "processes", "dask"])
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    if request.param == "dask":
        with DaskCluster() as cluster:
            yield Way(("--engine", "dask", "--scheduler", cluster.address), cluster.environment)
    else:
        yield Way(("--processes", "2" if request.param == "processes" else "1"))


@pytest.fixture
def run(way: Way, fleet: SimFleet, state: Path) -> Command:
    environment = {"GPUFLEET_INVENTORY": str(fleet.fleet_yaml), "GPUFLEET_STATE": str(state)}
    command = command_for({**environment, **way.environment})

    def on(*arguments: str, **options: object) -> Ran:
        return command(*arguments, "-H", "inference-pool", *way.options, **options)

    return on


def test_busy_nodes_become_clean_and_nothing_else_is_harmed(run: Command, fleet: SimFleet) -> None:
    procs = {node.name: node.start(SGLANG) for node in fleet}

    ran = run("reset", "--json")

    assert ran.code == 0, ran
    assert ran.err == ""
    assert tuple(ran.nodes()) == POOL
    for node in fleet:
        told = ran.nodes()[node.name]
        assert told["verdict"] == "CLEAN"
        assert [gpu["memory_used_mib"] for gpu in told["gpus"]] == [0] * 8
        alive = {proc.label for proc in procs[node.name] if node.alive(proc)}
        assert alive == {proc.label for proc in IDLE}
        assert {line["pid"] for line in told["killed"]} == {
            proc.pid for proc in procs[node.name] if proc.label not in alive
        }
        assert [moment["phase"] for moment in told["timeline"]][:2] == ["connect", "look"]


def test_a_dry_run_touches_nothing(run: Command, fleet: SimFleet) -> None:
    procs = {node.name: node.start(SGLANG) for node in fleet}

    ran = run("reset", "--dry-run", "--json")

    assert ran.code == 0, ran
    for node in fleet:
        assert len(ran.nodes()[node.name]["killed"]) == 10
        assert all(node.alive(proc) for proc in procs[node.name])


def test_each_kind_of_end_and_its_exit_status(run: Command, fleet: SimFleet) -> None:
    fleet["gpu01"].stop_sshd()
    fleet["gpu02"].fault("gpu3", "[N/A]")
    fleet["gpu03"].fault("gpu0", "[GPU requires reset]")

    ran = run("reset", "--json")
    quiet = run("status", "--json")

    verdicts = [node["verdict"] for node in ran.nodes().values()]
    assert (ran.code, verdicts) == (3, ["UNREACHABLE", "UNKNOWN", "BROKEN", "CLEAN"]), ran
    assert "connection refused" in ran.nodes()["gpu01"]["reason"].lower()
    assert all(node["next_step"] for node in ran.nodes().values() if node["verdict"] != "CLEAN")
    verdicts = [node["verdict"] for node in quiet.nodes().values()]
    assert (quiet.code, verdicts) == (3, ["UNREACHABLE", "UNKNOWN", "BROKEN", "IDLE"])


def test_batches_end_after_too_many_failures(run: Command, fleet: SimFleet) -> None:
    fleet["gpu01"].fault("gpu0", "[GPU requires reset]")
    later = fleet["gpu03"].start(SGLANG)

    ran = run("reset", "--json", "--batch", "2", "--max-failures", "0")

    verdicts = [node["verdict"] for node in ran.nodes().values()]
    assert verdicts[0] == "BROKEN"
    assert verdicts[2:] == ["NOT STARTED"] * 2
    assert ran.code == 3
    assert all(fleet["gpu03"].alive(proc) for proc in later)


def test_events_stream_while_it_runs(run: Command, fleet: SimFleet) -> None:
    for node in fleet:
        node.start(SGLANG)

    ran = run("reset", "--jsonl")

    lines = [json.loads(line) for line in ran.out.splitlines()]
    phases = {(line["host"], line["phase"]) for line in lines if line["event"] == "phase"}
    for name in POOL:
        assert {(name, "connect"), (name, "look"), (name, "kill")} <= phases
    nodes = [line["node"]["host"] for line in lines if line["event"] == "node"]
    assert sorted(nodes) == [*POOL]
    first = next(i for i, line in enumerate(lines) if line["event"] == "phase")
    assert first < next(i for i, line in enumerate(lines) if line["event"] == "node")


def test_an_interrupt_ends_it_with_a_verdict_for_each(
    way: Way, fleet: SimFleet, state: Path
) -> None:
    node = fleet["gpu01"]
    lock = node.path("/run/gpufleet/lock")
    lock.unlink(missing_ok=True)
    node.start((DRAINING,))
    command = [sys.executable, "-m", "gpufleet", "reset", "-H", "inference-pool", "--json"]
    process = subprocess.Popen(
        [*command, "-i", str(fleet.fleet_yaml), "--parallel", "1", *way.options],
        env={**os.environ, **way.environment, "GPUFLEET_STATE": str(state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (lock.exists() and lock.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)

    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=40)

    nodes = json.loads(out)["nodes"]
    assert [node["verdict"] for node in nodes] == ["UNKNOWN", *["NOT STARTED"] * 3]
    assert nodes[0]["reason"] == "interrupted: state not verified"
    assert nodes[0]["killed"]  # who worked on it heard of the interrupt, and told how far it came
    assert process.returncode == 128 + signal.SIGINT


def test_what_was_stopped_is_looked_for(run: Command) -> None:
    ran = run("restore", "--json")

    assert ran.code == 0, ran
    assert {node["verdict"] for node in ran.nodes().values()} == {"READY"}
    assert run("check", "--json").code == 0
