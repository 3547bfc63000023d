"""A run over many nodes: selection in, reports out.

Bounded fan-out over any `concurrent.futures.Executor`, a deadline for each node, and `^C`. Promises
exactly one report per node, in the order of the selection, whatever happens to a node or to the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpufleet.model import RunReport, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.run.engine import Engine, opened
from gpufleet.run.fanout import PARALLEL, Progress, hand_out, run_nodes
from gpufleet.run.interrupt import Interrupt
from gpufleet.run.origin import new_run_id, person
from gpufleet.run.rolling import Rolling, parse_rolling
from gpufleet.run.task import Command, Task
from gpufleet.run.turns import Turns

if TYPE_CHECKING:
    from gpufleet.reset import Crowd

__all__ = [
    "Engine",
    "Interrupt",
    "Progress",
    "check",
    "new_run_id",
    "reset",
    "restore",
    "run_nodes",
    "status",
]


def reset(
    specs: Sequence[NodeSpec],
    *,
    selection: str = "",
    dry_run: bool = False,
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
    batch: str | int | None = None,
    max_failures: str | int | None = None,
    canary: int = 0,
    shown: RunReport | None = None,
    run_id: str | None = None,
    engine: Engine | None = None,
) -> RunReport:
    """Bring every node to a proven clean slate. `dry_run`: look and plan, send no signal.

    `batch`: so many nodes (4, "25%") at once, the next when they are done. `max_failures`: start
    nothing more when more than this many failed (2, "10%" of all). `canary`: so many first, the
    others only if these are CLEAN. A dry run heeds none of these: it looks at all. `shown`: the dry
    run that a person has agreed to; where other users' processes have come since, a node is skipped.

    `engine`: threads of this process by default, see `Engine`. `executor`: any other that takes a
    function with plain arguments (`concurrent.futures`); it tells nothing before a node's result.

    Nothing is recorded here: that is the command line's business, which hands in the `run_id`
    under which it does (see `new_run_id`) and listens through `progress`. It must be new for each
    run: a node does each act of a run once, and what a stopped run is handed later isn't begun.

    The caller's process gets INT, TERM and HUP handled while this runs (in its main thread only).
    Raises `UsageError`, and touches nothing, for numbers that make no sense.
    """
    rolling = parse_rolling(batch, max_failures, canary)
    task = _task("reset", run_id, dry_run, _crowds(shown) if shown else None)
    task = replace(task, agreed=_agreed(shown) if shown else None)
    if dry_run:
        rolling = Rolling()
    return _run(task, specs, selection, parallel, progress, executor, engine, rolling)


def _crowds(shown: RunReport) -> Mapping[str, Crowd]:
    """By node, whose processes a person agreed to have killed: nobody's where none would have been."""
    from gpufleet.reset import crowd_of  # noqa: PLC0415  # loaded by that dry run

    return {
        node.host: frozenset() if node.verdict is Verdict.SKIPPED else crowd_of(node.planned)
        for node in shown.nodes
    }


def _agreed(shown: RunReport) -> frozenset[str]:
    """Nodes of which the question said that they aren't clean, and so what may follow."""
    told = {Verdict.DIRTY, Verdict.BROKEN, Verdict.UNKNOWN}
    return frozenset(node.host for node in shown.nodes if node.verdict in told)


def restore(
    specs: Sequence[NodeSpec],
    *,
    selection: str = "",
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
    run_id: str | None = None,
    engine: Engine | None = None,
) -> RunReport:
    """Start again what earlier resets stopped and didn't start. READY: all of it is up."""
    task = _task("restore", run_id)
    report = _run(task, specs, selection, parallel, progress, executor, engine)
    nodes = tuple(
        replace(node, next_step=f"gpufleet restore --hosts {node.host}")
        if node.verdict is Verdict.NOT_STARTED
        else node
        for node in report.nodes
    )
    return replace(report, nodes=nodes)


def status(
    specs: Sequence[NodeSpec],
    *,
    selection: str = "",
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
    run_id: str | None = None,
    engine: Engine | None = None,
) -> RunReport:
    """One look at every node; changes nothing."""
    task = _task("status", run_id)
    return _run(task, specs, selection, parallel, progress, executor, engine)


def check(
    specs: Sequence[NodeSpec],
    *,
    selection: str = "",
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
    run_id: str | None = None,
    engine: Engine | None = None,
) -> RunReport:
    """Would a reset work? Login, privilege, tools and GPU count of every node; changes nothing."""
    task = _task("check", run_id)
    return _run(task, specs, selection, parallel, progress, executor, engine)


def _task(
    command: Command,
    run_id: str | None,
    dry_run: bool = False,
    shown: Mapping[str, Crowd] | None = None,
) -> Task:
    who = f"{person()}, since {_now()}"
    return Task(command, run_id or new_run_id(), who, dry_run, shown=shown)


def _run(
    task: Task,
    specs: Sequence[NodeSpec],
    selection: str,
    parallel: int,
    progress: Progress | None,
    executor: Executor | None,
    engine: Engine | None,
    rolling: Rolling | None = None,
) -> RunReport:
    started = _now()
    progress = progress or Progress()
    interrupt = Interrupt()
    turns = Turns(rolling or Rolling(), len(specs), interrupt.__bool__)
    where = opened(engine or Engine(), executor, task, specs, parallel, interrupt, progress, turns)
    first = sum((rolling or Rolling()).batches(len(specs))[:1])
    with where as site, interrupt.caught():
        site.begin(specs[: max(0, min(parallel, first))])
        nodes = hand_out(
            specs,
            site.submit,
            interrupt,
            parallel,
            progress,
            rolling,
            site.places,
            turns.waited_s,
        )
    return RunReport(
        task.run_id,
        task.command,
        selection,
        started,
        _now(),
        nodes,
        task.dry_run,
        interrupt.signal,
    )


def _now() -> str:
    """UTC in milliseconds: `2026-01-31T02:00:00.123Z`."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
