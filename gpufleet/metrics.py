"""The result of a reset as Prometheus metrics in a file, for node_exporter's textfile collector.

The file always holds all nodes that it ever had and the inventory still has: two cron lines may
share one, and a node that wasn't in this run keeps its verdict, with the time of it beside it.
Labels are hosts, GPU indexes and verdicts, never anything that a node said.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.model import RESET_VERDICTS, NodeReport, RunReport, Verdict

_LOCK_S = 2.0
"""So long another run's writing is waited for: it takes milliseconds."""

_MIB = 1 << 20

_PER_NODE = {
    # name without prefix: (help, further label)
    "verdict": ("1 for the verdict of the node's last reset, 0 for the others", "verdict"),
    "last_run_timestamp_seconds": ("When the node was last reset, whatever came of it", ""),
    "last_success_timestamp_seconds": ("When the node was last proven CLEAN", ""),
    "duration_seconds": ("The node's own time in its last reset", ""),
    "attempts": ("Rounds of killing in its last reset", ""),
    "escalated": ("1 for each rung that its last reset took (gpu-reset, reboot), else 0", "rung"),
    "killed_processes": ("Processes that got a signal in its last reset", ""),
    "gpu_memory_used_bytes": ("Memory in use at the end; absent where unreadable", "gpu"),
}

Series = dict[tuple[str, str, str], float]
"""(name, host, further label) → value."""


def write_metrics(
    path: Path, report: RunReport, exit_code: int, *, known_hosts: frozenset[str]
) -> None:
    """Replace the file at once, readable for all. OSError when it can't be written."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        # Often root writes here: /dev/stdout and /dev/null aren't to be replaced by a file.
        raise OSError(errno.EINVAL, "not a regular file")
    finished = datetime.fromisoformat(report.finished.replace("Z", "+00:00")).timestamp()
    started = datetime.fromisoformat(report.started.replace("Z", "+00:00")).timestamp()
    with _alone(path.absolute().parent):
        ran = {node.host for node in report.nodes}
        series: Series = {
            key: value
            for key, value in _earlier(path).items()
            if key[1] in known_hosts and (key[1] not in ran or key[0].startswith("last_"))
        }
        for node in report.nodes:
            series.update(_series(node, finished))
        registry = CollectorRegistry()
        _run_gauges(registry, report, exit_code, finished, finished - started)
        _node_gauges(registry, series)
        _replace(path, registry)


def _series(node: NodeReport, finished: float) -> Series:
    host = node.host
    found: Series = {
        ("verdict", host, verdict.value): float(node.verdict is verdict)
        for verdict in RESET_VERDICTS
    }
    if node.verdict is not Verdict.NOT_STARTED:
        found["last_run_timestamp_seconds", host, ""] = finished
    if node.verdict is Verdict.CLEAN:
        found["last_success_timestamp_seconds", host, ""] = finished
    found["duration_seconds", host, ""] = node.elapsed_s
    found["attempts", host, ""] = node.attempts
    taken = {one.rung for one in node.escalations if not one.done.startswith("no: ")}
    for rung in ("gpu-reset", "reboot"):
        found["escalated", host, rung] = float(rung in taken)
    found["killed_processes", host, ""] = len(node.killed)
    for gpu in node.gpus:
        if gpu.memory_used_mib is not None:
            found["gpu_memory_used_bytes", host, str(gpu.index)] = gpu.memory_used_mib * _MIB
    return found


def _run_gauges(
    registry: CollectorRegistry,
    report: RunReport,
    exit_code: int,
    finished: float,
    duration_s: float,
) -> None:
    def gauge(name: str, text: str, value: float) -> None:
        Gauge(f"gpufleet_run_{name}", text, registry=registry).set(value)

    gauge("exit_code", "Exit status of the last reset: 0 all CLEAN", exit_code)
    gauge("finished_timestamp_seconds", "When the last reset ended", finished)
    gauge("duration_seconds", "How long the last reset took", duration_s)
    nodes = Gauge("gpufleet_run_nodes", "Nodes of the last reset", ["verdict"], registry=registry)
    for verdict in RESET_VERDICTS:
        nodes.labels(verdict.value).set(report.count(verdict))


def _node_gauges(registry: CollectorRegistry, series: Series) -> None:
    for name, (text, label) in _PER_NODE.items():
        labels = ["host", label] if label else ["host"]
        gauge = Gauge(f"gpufleet_node_{name}", text, labels, registry=registry)
        for (of, host, further), value in series.items():
            if of == name:
                gauge.labels(*([host, further] if label else [host])).set(value)


def _earlier(path: Path) -> Series:
    """What the file says of nodes so far; nothing where it isn't there or isn't ours."""
    found: Series = {}
    try:
        families = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, IndexError):
        return found
    for family in families:
        name = family.name.removeprefix("gpufleet_node_")
        if family.name == name or name not in _PER_NODE:
            continue
        label = _PER_NODE[name][1]
        for sample in family.samples:
            key = (name, sample.labels.get("host", ""), sample.labels.get(label, ""))
            found[key] = sample.value
    return found


def _replace(path: Path, registry: CollectorRegistry) -> None:
    """Readable before it has its name: node_exporter is another user. No *.prom until then."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        write_to_textfile(str(new), registry)
        new.chmod(0o644)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One writer at a time. A lock that can't be had in time is gone without: the file stays whole."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)
