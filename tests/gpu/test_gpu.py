"""Resets of real GPUs, each checked by nvidia-smi itself; times go to $GPUFLEET_GPU_RECORDS, if set."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
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
from gpufleet.run import new_run_id
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
            spec, lambda: Recorded(connect(spec), answers), Resetting(new_run_id(), "tests")
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
    """Into a file of its own, fit to become a fixture: nothing names the machine it came from."""
    if folder := os.environ.get("GPUFLEET_GPU_RECORDS"):
        text = anonymous(json.dumps(values, indent=1, ensure_ascii=True, default=str))
        Path(folder, f"{name.replace('[', '-').strip(']')}.json").write_text(text)


def anonymous(text: str) -> str:
    """Serial numbers and the like as 0; every UUID (of GPUs, fabric clusters, boots) counted."""
    seen: dict[str, str] = {}

    def counted(found: re.Match[str]) -> str:
        number = seen.setdefault(found[0], str(len(seen) + 1))
        return f"00000000-0000-0000-0000-{number.zfill(12)}"

    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", counted, text)
    return re.sub(r"((?:Serial Number|Part Number|GPU PDI)\s*:) (?!N/A)[\w.-]+", r"\1 0", text)


def gpus() -> range:
    return range(len(memory_mib()))


def printed(*command: str) -> str:
    """Both outputs: what a machine answers, or why it doesn't, is worth keeping."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + done.stderr


def holders_outside() -> dict[str, str]:
    """What holds a GPU's device files on this machine, by pid."""
    found = {}
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # gone since it was listed
            if str(handle.readlink()).startswith("/dev/nvidia"):
                found[handle.parts[2]] = handle.parents[1].joinpath("comm").read_text().strip()
    return found


class Watched:
    """How much each GPU holds, as nvidia-smi says outside of the node, over and over."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, list[int]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watched:  # noqa: PYI034  # Self is in typing from 3.11 on
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        started = time.monotonic()
        while not self._over.is_set():
            used = memory_mib()
            self.readings.append((round(time.monotonic() - started, 3), used))


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


@pytest.mark.parametrize("pinned_mib", [0, 20 << 10])
def test_a_worker_for_each_gpu_goes_with_their_launcher(
    pinned_mib: int, node: GpuNode, reset_gpus: Reset
) -> None:
    launcher = node.start("bash", "-c", "while :; do sleep 1; done; # sglang.launch_server --tp")
    for gpu in gpus():
        node.hold(gpu, 100 << 10, pinned_mib, title=f"sglang::scheduler_TP{gpu}")
    query_s = [timed(memory_mib) for _ in range(5)]

    with Watched() as watched:
        report = reset_gpus()

    assert report.verdict is Verdict.CLEAN, report
    assert len(report.killed) == len(gpus()) + 1
    assert launcher.wait(5) != 0
    assert set(memory_mib()) == {0}
    assert [gpu.index for gpu in report.gpus] == list(gpus())
    assert {gpu.memory_used_mib for gpu in report.gpus} == {0}
    timeline = [asdict(moment) for moment in report.timeline]
    record(
        f"watched-{len(gpus())}-gpus-pinned-{pinned_mib}",
        query_s=query_s,
        readings=watched.readings,
        timeline=timeline,
        elapsed_s=report.elapsed_s,
    )


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
    record(
        "idle",
        holders=holders_outside(),
        whole=printed("nvidia-smi", "-q"),
        topology=printed("nvidia-smi", "topo", "-m"),
        list=printed("nvidia-smi", "-L"),
    )
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
