"""The benchmark runs and says what it measured; how long anything took is no test's business."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from bench.crowd import QUERY
from bench.fanout import exponent
from bench.measure import Run, measured
from bench.peers import Hosts, library
from bench.reset import Truth, free_gpus, start, truth
from bench.table import table
from tests.simfleet import SimFleet, scenes


def run(wall_s: float) -> Run:
    return Run(wall_s, wall_s, 1.0, 0, "")


def test_a_command_and_its_children_are_measured() -> None:
    busy = (
        "import subprocess as s,sys; s.run([sys.executable,'-c','sum(range(3*10**6))']); print(1)"
    )
    result = measured([sys.executable, "-c", busy])
    assert result.status == 0
    assert result.output.startswith("1")
    assert result.cpu_s > measured([sys.executable, "-c", "pass"]).cpu_s
    assert result.peak_mib > 1


def test_a_command_that_fails_says_so() -> None:
    assert measured(["sh", "-c", "exit 7"]).status == 7


def test_the_exponent_of_linear_and_quadratic_costs() -> None:
    for power in (1, 2):
        points = [(size, run(0.5 + size**power)) for size in (1, 100, 1000, 10000)]
        assert exponent(points, lambda r: r.wall_s) == pytest.approx(power, rel=0.05)
    assert math.isnan(exponent([(1, run(1)), (2, run(2))], lambda r: r.wall_s))


def test_the_truth_counts_busy_gpus_living_workload_and_killed_daemons(fleet: SimFleet) -> None:
    running = start(fleet, (*scenes.IDLE, *scenes.SGLANG_WORKLOAD))
    nodes = len(fleet)
    workload = len(scenes.SGLANG_WORKLOAD)
    assert truth(fleet, running) == Truth(8 * nodes, workload * nodes, 0)
    node = fleet["gpu01"]
    for process in running["gpu01"]:
        node.kill(process)
    for name in ("gpu02", "gpu03", "gpu04"):
        for process in running[name]:
            if process.label not in {proc.label for proc in scenes.IDLE}:
                fleet[name].kill(process)
    assert truth(fleet, running) == Truth(0, 0, len(scenes.IDLE))
    assert str(Truth(0, 0, 0)) == "right"
    assert free_gpus(node) == 8


def test_a_table_is_markdown() -> None:
    assert table("T", ("a", "bb"), [(1, "x")]) == "\n## T\n\n| a | bb |\n|---|----|\n| 1 | x  |\n"


def test_every_part_runs() -> None:
    command = [sys.executable, "-m", "bench", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for title in ("Peers", "Start-up", "Reset to verdict", "`nvidia-smi", "Cost growth"):
        assert f"\n## {title}" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| 1     | gpufleet  ")]
    assert "1 × right" in row


@pytest.mark.parametrize("name", ["gpufleet", "bare", "fabric"])
def test_a_library_asks_each_node_and_fails_where_one_does(name: str, fleet: SimFleet) -> None:
    addresses = [node.address for node in fleet]
    hosts = Hosts(addresses, fleet.port, fleet.identity_file, fleet.known_hosts)

    assert measured(library(name)(hosts, QUERY).command).status == 0
    assert measured(library(name)(hosts, "false").command).status != 0
