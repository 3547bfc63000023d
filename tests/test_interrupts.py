"""Runs that are stopped, or lose a stream: the report comes, the exit status tells, nothing stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import Access, Hooks, NodeSpec
from gpufleet.run import Interrupt, run_nodes
from tests.conftest import Command
from tests.simfleet import SGLANG, Proc, SimFleet, SimNode

DRAINING = Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=30)
ME = f"{sys.executable} -m gpufleet"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def scripts(node: SimNode) -> list[int]:
    return [p.pid for p in node.processes() if p.args[:2] == (b"/bin/sh", b"-s")]


def ended(node: SimNode) -> bool:
    deadline = time.monotonic() + 20
    while scripts(node) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not scripts(node)


def draining(fleet: SimFleet, node: SimNode, *arguments: str) -> subprocess.Popen[str]:
    """A reset of the pool that waits for the memory of gpu01."""
    lock = node.path("/run/gpufleet/lock")
    lock.unlink(missing_ok=True)
    node.start((DRAINING,))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gpufleet", "reset", "--hosts", "inference-pool"),
            *("-i", str(fleet.fleet_yaml), *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (lock.exists() and lock.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    return process


def test_e03_a_second_signal_waits_for_nobody_and_the_report_comes(
    fleet: SimFleet, node: SimNode
) -> None:
    process = draining(fleet, node, "--json")

    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)

    verdicts = {n["host"]: n["verdict"] for n in json.loads(out)["nodes"]}
    assert process.returncode in {130, 143}
    assert err == ""
    assert verdicts["gpu01"] == "UNKNOWN"
    assert len(verdicts) == 4
    assert ended(node)


def test_a_killed_run_leaves_nothing_on_the_node_and_the_next_one_works(
    fleet: SimFleet, node: SimNode, gpufleet: Command
) -> None:
    process = draining(fleet, node)

    process.kill()
    process.communicate(timeout=30)

    assert ended(node)
    node.clear()
    node.start(SGLANG)
    assert gpufleet("reset", "--hosts", "gpu01", "--json").nodes()["gpu01"]["verdict"] == "CLEAN"


def test_an_interrupt_between_batches_starts_no_other(fleet: SimFleet, node: SimNode) -> None:
    later = fleet["gpu02"].start(SGLANG)
    process = draining(fleet, node, "--json", "--batch", "1", "--max-failures", "0")

    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)

    nodes = {n["host"]: n for n in json.loads(out)["nodes"]}
    assert process.returncode == 143
    assert nodes["gpu02"]["verdict"] == "NOT STARTED"
    assert nodes["gpu02"]["reason"] == "interrupted before anything was changed"
    assert all(fleet["gpu02"].alive(proc) for proc in later)


@pytest.mark.parametrize(
    ("redirection", "code"),
    [
        ("2>&-", 0),  # cron jobs and daemons close it
        ("2>/dev/full", 0),
        ("2> >(exec true)", 0),
        (">&-", 0),  # nobody wants the result
        (">/dev/full", 3),
        ("> >(exec true)", 141),  # the reader went away: the shell's number for it
        (">&- 2>&-", 0),
        (">/dev/full 2>/dev/full", 3),
    ],
)
def test_a_stream_that_cannot_be_written_costs_no_node_its_reset(
    redirection: str, code: int, fleet: SimFleet, node: SimNode
) -> None:
    procs = node.start(SGLANG)

    done = shell(f"{ME} reset --hosts gpu01 -v -i {fleet.fleet_yaml} {redirection}")

    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert not any(node.alive(proc) for proc in procs if "sglang" in proc.label)
    assert ended(node)
    assert len([proc for proc in procs if not node.alive(proc)]) == 10


def test_an_interrupt_gives_after_its_time_on_touched_nodes_only() -> None:
    """Without an `after` a node that doesn't come to an end is given up after seconds."""
    interrupt = Interrupt()
    hooks = Hooks(after="undrain", after_timeout_s=30)
    specs = [NodeSpec("n1", Access("192.0.2.1"), hooks=hooks)]

    def late(spec: NodeSpec) -> NodeReport:
        interrupt.touched.add(spec.name)
        interrupt.stop()
        time.sleep(6)  # longer than WIND_DOWN_S
        return NodeReport(spec.name, "", Verdict.UNKNOWN, "told by its own report")

    [report] = run_nodes(specs, late, interrupt)

    assert report.reason == "told by its own report"
