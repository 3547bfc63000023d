"""What gpufleet does in a worker of a Dask cluster: functions of a module, called from afar."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace

from gpufleet import __version__
from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.run.task import Task, desk_of, known_desk, stop_run

TOPIC = "gpufleet"
"""One for all runs: a scheduler keeps the last thousand events of each topic for as long as it lives."""


def work(task: Task, spec: NodeSpec) -> NodeReport:
    """One node's task. What can't be reached from a worker is said to be seen from it."""
    from distributed import get_worker  # noqa: PLC0415  # an extra, and half a second

    worker = get_worker()

    def tell(host: str, phase: str, detail: str) -> None:
        with contextlib.suppress(Exception):  # a view of what goes on isn't worth a reset
            worker.log_event(TOPIC, (task.run_id, host, phase, detail))

    with desk_of(task, tell) as desk:
        report = desk.work(task, spec)
    if report.verdict is Verdict.UNREACHABLE:
        return replace(report, reason=f"{report.reason} (seen from worker {socket.gethostname()})")
    return report


def version() -> str:
    return __version__


def stop_there(run_id: str, number: int) -> None:
    """In a thread of its own: it is asked for in the loop that the worker speaks to others with."""
    threading.Thread(target=stop_run, args=(run_id, number), daemon=True).start()


def hurry_run(run_id: str) -> None:
    desk = known_desk(run_id)
    if desk is not None:
        desk.interrupt.hurried = True
