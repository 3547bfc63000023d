"""One command, measured: wall, CPU and memory of it and of all that it started."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_PLAIN = Path(sys.prefix, "gpufleet", "bin", "gpufleet")
GPUFLEET = [str(_PLAIN)] if _PLAIN.exists() else [sys.executable, "-m", "gpufleet"]
"""gpufleet as a user installs it, where setup.sh did that: a checkout's import hook and what else lies
in a developer's environment (Dask's tornado, which tenacity then loads) cost it 0.05 s."""


@dataclass(frozen=True)
class Run:
    """`cpu_s` and `peak_mib` are the command's and its children's; memory is the largest process's."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    status: int
    output: str


T = TypeVar("T")
R = TypeVar("R")


def in_turn(calls: Mapping[str, T], times: int, one: Callable[[T], R]) -> dict[str, list[R]]:
    """Each call once, then each once more: a machine whose speed drifts is as fast for all of them."""
    runs: dict[str, list[R]] = {name: [] for name in calls}
    for _ in range(times):
        for name, call in calls.items():
            runs[name].append(one(call))
    return runs


def measured(
    command: Sequence[str], env: Mapping[str, str] | None = None, timeout_s: float = 600
) -> Run:
    # Each measurement has its own small parent, whose account of its children holds nothing else.
    with tempfile.TemporaryFile("w+") as output:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _run(command, {**os.environ, **(env or {})}, output.fileno(), timeout_s)
        _, ended, usage = os.wait4(child, 0)
        wall_s = time.monotonic() - began
        output.seek(0)
        text = output.read()
        cpu_s = usage.ru_utime + usage.ru_stime
        return Run(wall_s, cpu_s, _peak(text), os.waitstatus_to_exitcode(ended), text)


_PEAK = "bench-peak-kib "


def _peak(output: str) -> float:
    return int(output.rpartition(_PEAK)[2].split()[0]) / 1024


def _run(command: Sequence[str], env: Mapping[str, str], output: int, timeout_s: float) -> None:
    status = 127
    try:
        with subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process:
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        os.write(output, f"\n{_PEAK}{peak}\n".encode())
    finally:
        os._exit(status if 0 <= status < 256 else 1)


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of several runs."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def spread_of(runs: Sequence[Run], what: Callable[[Run], float]) -> Spread:
    return spread([what(run) for run in runs])
