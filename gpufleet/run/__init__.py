"""A run over many nodes: selection in, reports out.

Bounded fan-out over any `concurrent.futures.Executor`, a deadline for each node, and `^C`. Promises
exactly one report per node, in the order of the selection, whatever happens to a node or to the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpufleet.look import check_node, status_node
from gpufleet.model import NodeReport, RunReport, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.reset import Crowd, Resetting, crowd_of, reset_node, restore_node
from gpufleet.run.fanout import PARALLEL, Progress, run_nodes, untouched
from gpufleet.run.interrupt import Connector, Interrupt
from gpufleet.run.origin import here, new_run_id, person
from gpufleet.run.rolling import Rolling, parse_rolling
from gpufleet.transport import Transport

if TYPE_CHECKING:
    from gpufleet.ssh import Network

__all__ = [
    "Interrupt",
    "Progress",
    "check",
    "new_run_id",
    "reset",
    "restore",
    "run_nodes",
    "status",
]


_TOUCHING = frozenset({"before", "stop", "kill", "free", "clean", "start", "after"})
"""Phases from which on a node is no longer as it was."""


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
) -> RunReport:
    """Bring every node to a proven clean slate. `dry_run`: look and plan, send no signal.

    `batch`: so many nodes (4, "25%") at once, the next when they are done. `max_failures`: start
    nothing more when more than this many failed (2, "10%" of all). `canary`: so many first, the
    others only if these are CLEAN. A dry run heeds none of these: it looks at all. `shown`: the dry
    run that a person has agreed to; where other users' processes have come since, a node is skipped.

    Nothing is recorded here: that is the command line's business, which hands in the `run_id`
    under which it does (see `new_run_id`) and listens through `progress`.

    The caller's process gets INT, TERM and HUP handled while this runs (in its main thread only).
    Raises `UsageError`, and touches nothing, for numbers that make no sense.
    """
    rolling = parse_rolling(batch, max_failures, canary)
    started = _now()
    progress = progress or Progress()
    interrupt = Interrupt()
    run_id = run_id or new_run_id()
    network = _network(specs, interrupt, progress)
    resetting = Resetting(
        run_id,
        f"{person()}, since {started}",
        dry_run,
        interrupt.__bool__,
        here=here(),
        hurried=lambda: interrupt.hurried,
        shown=_crowds(shown) if shown else None,
    )

    def work(spec: NodeSpec) -> NodeReport:
        def on_event(phase: str, detail: str) -> None:
            if phase in _TOUCHING:
                interrupt.touched.add(spec.name)
            progress.on_event(spec.name, phase, detail)

        connector = Connector(spec, interrupt, network)
        return reset_node(spec, connector, resetting, on_event, connector.anyway)

    if dry_run:
        rolling = Rolling()
    with closing(network):
        nodes = run_nodes(specs, work, interrupt, parallel, progress, executor, rolling)
    return RunReport(run_id, "reset", selection, started, _now(), nodes, dry_run, interrupt.signal)


def _crowds(shown: RunReport) -> Mapping[str, Crowd]:
    """By node, whose processes a person agreed to have killed: nobody's where none would have been."""
    return {
        node.host: frozenset() if node.verdict is Verdict.SKIPPED else crowd_of(node.planned)
        for node in shown.nodes
    }


def restore(
    specs: Sequence[NodeSpec],
    *,
    selection: str = "",
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
    run_id: str | None = None,
) -> RunReport:
    """Start again what earlier resets stopped and didn't start. READY: all of it is up."""
    run_id = run_id or new_run_id()
    who = f"{person()}, since {_now()}"

    def look(
        spec: NodeSpec,
        connect: Callable[[], Transport],
        on_event: Callable[[str, str], None],
        _interrupted: Callable[[], bool],
    ) -> NodeReport:
        return restore_node(spec, connect, f"run {run_id} by {who}", on_event)

    report = _look("restore", look, specs, selection, parallel, progress, executor, run_id)
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
) -> RunReport:
    """One look at every node; changes nothing."""
    return _look("status", status_node, specs, selection, parallel, progress, executor, run_id)


def check(
    specs: Sequence[NodeSpec],
    *,
    selection: str = "",
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
    run_id: str | None = None,
) -> RunReport:
    """Would a reset work? Login, privilege, tools and GPU count of every node; changes nothing."""
    return _look("check", check_node, specs, selection, parallel, progress, executor, run_id)


def _look(
    command: str,
    look: Callable[
        [NodeSpec, Callable[[], Transport], Callable[[str, str], None], Callable[[], bool]],
        NodeReport,
    ],
    specs: Sequence[NodeSpec],
    selection: str,
    parallel: int,
    progress: Progress | None,
    executor: Executor | None,
    run_id: str | None,
) -> RunReport:
    started = _now()
    run_id = run_id or new_run_id()
    interrupt = Interrupt()
    progress = progress or Progress()
    network = _network(specs, interrupt, progress)

    def work(spec: NodeSpec) -> NodeReport:
        def on_event(phase: str, detail: str) -> None:
            if phase in _TOUCHING:
                interrupt.touched.add(spec.name)
            progress.on_event(spec.name, phase, detail)

        connector = Connector(spec, interrupt, network)
        report = look(spec, connector, on_event, interrupt.__bool__)
        failed = report.verdict in {Verdict.UNKNOWN, Verdict.UNREACHABLE}
        if interrupt and failed and spec.name not in interrupt.touched:
            return untouched(spec)
        return report

    with closing(network):
        nodes = run_nodes(specs, work, interrupt, parallel, progress, executor)
    return RunReport(
        run_id, command, selection, started, _now(), nodes, interrupted_by=interrupt.signal
    )


def _network(specs: Sequence[NodeSpec], interrupt: Interrupt, progress: Progress) -> Network:
    """The run's connections; reads keys and configuration, and asks what must be asked, first."""
    from gpufleet.ssh import Network  # noqa: PLC0415  # 0.1 s that `--help` needn't pay

    network = Network()
    interrupt.also_cut.append(network.cut)
    for note in network.prepare(specs, progress.ask_secret):
        progress.on_note(note)
    return network


def _now() -> str:
    """UTC in milliseconds: `2026-01-31T02:00:00.123Z`."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
