"""Resets of real GPUs, each checked by nvidia-smi itself; times go to $GPUFLEET_GPU_RECORDS, if set."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.model import NodeReport, Verdict
from gpufleet.observation import parse_observation
from gpufleet.policy import NodeSpec, Policy
from gpufleet.reset import Resetting, reset_node
from gpufleet.ssh import connect
from gpufleet.transport import Answer, Beat, Script, Transport
from tests.gpu.node import GpuNode, memory_mib, why_not

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]

ONE_LINER = (
    'ps aux | grep -E "python3|sglang" | grep -v grep | awk "{print \\$2}" | xargs kill -9 2>/dev/null;'
    " sleep 3; kill -9 $(fuser /dev/nvidia* 2>/dev/null | tr ' ' '\\n' | sort -u | grep -v '^$')"
    " 2>/dev/null; sleep 2; nvidia-smi --query-gpu=index,memory.used --format=csv,noheader"
)
"""What people run by hand, for comparison of times and of what it prints."""

Reset = Callable[..., NodeReport]


@pytest.fixture
def node() -> Iterator[GpuNode]:
    assert set(memory_mib()) <= {0}, "the GPUs are in use by others: these tests need them idle"
    with GpuNode() as running:
        yield running


class Recorded:
    """A transport that keeps what came over it."""

    def __init__(self, inner: Transport, answers: list[Answer]) -> None:
        self._inner = inner
        self._answers = answers

    def run(self, script: Script, *, timeout_s: float, beat: Beat | None = None) -> Answer:
        answer = self._inner.run(script, timeout_s=timeout_s, beat=beat)
        self._answers.append(answer)
        return answer

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def reset_gpus(node: GpuNode, request: pytest.FixtureRequest) -> Reset:
    def run(**settings: Any) -> NodeReport:
        policy = replace(Policy(gpus=len(memory_mib())), **settings)
        spec = NodeSpec("gpu", node.access, policy)
        answers: list[Answer] = []
        report = reset_node(
            spec, lambda: Recorded(connect(spec), answers), Resetting("gpu-test", "tests")
        )
        acts = [act for answer in answers if (act := parse_observation(answer).act)]
        record(
            request.node.name,
            verdict=report.verdict.value,
            reason=report.reason,
            elapsed_s=report.elapsed_s,
            killed=[line.rule for line in report.killed],
            acts=[{"dead_s": a.dead_s, "stop": a.stop, "readings": a.readings} for a in acts],
            answers=[{n: asdict(s) for n, s in a.sections.items()} for a in answers],
        )
        return report

    return run


def record(name: str, **values: Any) -> None:
    if folder := os.environ.get("GPUFLEET_GPU_RECORDS"):
        text = json.dumps(values, indent=1, ensure_ascii=True, default=str)
        Path(folder, f"{name.replace('[', '-').strip(']')}.json").write_text(text)


def gpus() -> range:
    return range(len(memory_mib()))


@pytest.mark.parametrize("mib", [8 << 10, 100 << 10])
def test_device_memory_is_freed_and_proven(mib: int, node: GpuNode, reset_gpus: Reset) -> None:
    holders = [node.hold(gpu, mib, title=f"sglang::scheduler_TP{gpu}") for gpu in gpus()]
    assert min(memory_mib()) >= mib

    report = reset_gpus()

    assert report.verdict is Verdict.CLEAN, report
    assert [line.rule for line in report.killed] == ["workload"] * len(holders)
    assert set(memory_mib()) == {0}
    assert all(gpu.memory_used_mib == 0 for gpu in report.gpus)


def test_pinned_host_memory_that_frees_late_is_waited_for(node: GpuNode, reset_gpus: Reset) -> None:
    for gpu in gpus():
        node.hold(gpu, 60 << 10, 40 << 10 if len(gpus()) == 1 else 20 << 10)

    report = reset_gpus()

    assert report.verdict is Verdict.CLEAN, report
    assert report.attempts == 1
    assert set(memory_mib()) == {0}


def test_an_orphan_that_inherited_the_devices_is_found(node: GpuNode, reset_gpus: Reset) -> None:
    node.end(node.hold(0, 4 << 10, 0, "child"))
    time.sleep(1)
    assert memory_mib()[0] > 0  # the child keeps it

    report = reset_gpus()

    assert report.verdict is Verdict.CLEAN, report
    assert len(report.killed) == 1
    assert memory_mib()[0] == 0


def test_the_deaf_get_kill_after_the_grace(node: GpuNode, reset_gpus: Reset) -> None:
    node.hold(0, 4 << 10, 0, "ignore-term")

    report = reset_gpus(grace_s=1.0)

    assert report.verdict is Verdict.CLEAN, report
    assert [line.signal for line in report.killed] == ["KILL"]


def test_a_running_nvidia_smi_and_a_gpu_daemon_live(
    node: GpuNode, reset_gpus: Reset, tmp_path: Path
) -> None:
    daemon = tmp_path / "nv-hostengine"
    daemon.write_bytes(Path("/usr/bin/tail").resolve().read_bytes())
    daemon.chmod(0o755)
    watching = node.start("nvidia-smi", "-l", "1")
    engine = node.start(str(daemon), "-f", "/dev/null", stdin="/dev/nvidiactl")
    job = node.hold(0, 4 << 10)

    report = reset_gpus()

    assert report.verdict is Verdict.CLEAN, report
    assert len(report.killed) == 1
    assert job.wait(5) != 0
    assert (watching.poll(), engine.poll()) == (None, None)
    assert "gpu-daemon" in {line.rule for line in report.spared}


def test_a_launcher_without_a_gpu_goes_with_its_worker(node: GpuNode, reset_gpus: Reset) -> None:
    launcher = node.start("bash", "-c", "while :; do sleep 1; done; # sglang.launch_server")
    node.hold(0, 4 << 10)

    report = reset_gpus()

    assert report.verdict is Verdict.CLEAN, report
    assert launcher.wait(5) != 0


def test_an_idle_node_is_clean_and_its_queries_are_timed(node: GpuNode, reset_gpus: Reset) -> None:
    idle = [timed(memory_mib) for _ in range(5)]
    report = reset_gpus()
    node.hold(0, 8 << 10)
    busy = [timed(memory_mib) for _ in range(5)]

    assert report.verdict is Verdict.CLEAN, report
    record("nvidia-smi", idle_s=idle, busy_s=busy)


@pytest.mark.parametrize("pinned_mib", [0, 40 << 10])
def test_the_command_that_people_run_by_hand_for_comparison(pinned_mib: int, node: GpuNode) -> None:
    node.hold(0, 60 << 10, pinned_mib if len(gpus()) == 1 else 0)

    started = time.monotonic()
    enter = ["nsenter", "-t", str(node.init_pid), "-p", "-m", "--"]
    done = subprocess.run(
        [*enter, "bash", "-c", ONE_LINER], capture_output=True, text=True, check=False
    )
    record(f"one-liner-{pinned_mib}", seconds=time.monotonic() - started, printed=done.stdout)

    assert "MiB" in done.stdout


def timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started
