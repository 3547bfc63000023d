"""Where a run's nodes are worked on: threads of this process, processes of this machine, a cluster.

Each way yields the same two things, an executor and what it is handed; questions are asked here, in
the run's own process, and events, notes and the stop of a run come and go through it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from gpufleet.errors import UsageError
from gpufleet.model import NodeReport
from gpufleet.policy import NodeSpec
from gpufleet.records import dataclass
from gpufleet.run.fanout import Progress, Submit
from gpufleet.run.interrupt import Interrupt
from gpufleet.run.origin import here
from gpufleet.run.task import TOUCHING, Desk, Task, load, perform
from gpufleet.run.turns import Turns

if TYPE_CHECKING:
    from gpufleet.ssh import Network

MAX_PROCESSES = 8
"""Each needs at least one login at a time at a shared bastion, whose sshd drops from the tenth on."""

WORTHWHILE = 500
"""Nodes from which on several processes are taken: the start of one costs half a second of CPU, a node
25 to 30 ms, so that two are faster from a hundred nodes on, and dearer by less than a tenth from here."""


@dataclass(frozen=True)
class Engine:
    """`processes`: 1 works in threads of this process, None takes as many as are worthwhile.
    `scheduler`: the address of a Dask scheduler, whose workers do it then."""

    processes: int | None = 1
    scheduler: str = ""

    def count(self, nodes: int) -> int:
        """Processes for so many nodes. Raises `UsageError`."""
        if self.processes is None:
            cores = len(os.sched_getaffinity(0))
            return min(cores, MAX_PROCESSES) if nodes >= WORTHWHILE else 1
        if not 1 <= self.processes <= MAX_PROCESSES:
            raise UsageError(f"--processes {self.processes}: from 1 to {MAX_PROCESSES}")
        return min(self.processes, max(nodes, 1))


@dataclass(frozen=True)
class Site:
    """Takes nodes to be worked on. `places`: how many at once, where that isn't the run's to say.
    `begin`: told which nodes will be the first, whatever comes."""

    submit: Submit
    places: Callable[[], int] | None = None
    begin: Callable[[Sequence[NodeSpec]], None] = lambda specs: None


@contextlib.contextmanager
def opened(
    engine: Engine,
    executor: Executor | None,
    task: Task,
    specs: Sequence[NodeSpec],
    parallel: int,
    interrupt: Interrupt,
    progress: Progress,
    turns: Turns,
) -> Iterator[Site]:
    """The engine for the time of a run. Raises `UsageError` for one that can't be had."""
    escalates = any(spec.policy.escalate != "none" for spec in specs) and not task.dry_run
    count = 1 if escalates and engine.processes is None else engine.count(len(specs))
    if engine.scheduler and executor is None:
        from gpufleet.run.cluster import cluster  # noqa: PLC0415  # most runs need none

        with cluster(engine.scheduler, task, interrupt, progress) as there:
            for note in _unsafe(specs):
                progress.on_note(note)
            yield Site(there.submit, there.places)
    elif executor is not None and not isinstance(executor, ThreadPoolExecutor):
        yield _foreign(executor, task, interrupt)
    elif count > 1 and executor is None:
        with _processes(count, task, specs, parallel, interrupt, progress) as site:
            yield site
    else:
        with _threads(executor, task, specs, parallel, interrupt, progress, turns) as site:
            yield site


@contextlib.contextmanager
def _threads(
    executor: Executor | None,
    task: Task,
    specs: Sequence[NodeSpec],
    parallel: int,
    interrupt: Interrupt,
    progress: Progress,
    turns: Turns,
) -> Iterator[Site]:
    with contextlib.closing(_network(specs, progress)) as network:
        desk = Desk(interrupt, network, progress.on_event, turns)
        pool = executor or ThreadPoolExecutor(max(1, min(parallel, len(specs))), "gpufleet")

        def begin(first: Sequence[NodeSpec]) -> None:
            network.begin(first if executor is None else ())
            load()

        try:
            yield Site(
                lambda spec: pool.submit(desk.work, task, spec),
                begin=begin,
            )
        finally:
            if executor is None:  # no thread is waited for: one may wait for a dead node
                pool.shutdown(wait=False, cancel_futures=True)


def _network(specs: Sequence[NodeSpec], progress: Progress) -> Network:
    """The run's connections; reads keys and configuration, and asks what must be asked, first."""
    from gpufleet.ssh import Network  # noqa: PLC0415  # 0.1 s that `--help` needn't pay

    network = Network()
    for note in network.prepare(specs, progress.ask_secret):
        progress.on_note(note)
    return network


def _unsafe(specs: Sequence[NodeSpec]) -> Iterator[str]:
    """What fleet.yaml says; the files of other machines are theirs."""
    names = [spec.name for spec in specs if spec.access.host_keys == "off"]
    if names:
        more = f" (and {len(names) - 1} more nodes)" if len(names) > 1 else ""
        yield f"{names[0]}: host_keys is off: whoever answers there gets a root login{more}"


def _foreign(executor: Executor, task: Task, interrupt: Interrupt) -> Site:
    """Somebody else's processes: nothing is heard of them before a result, so that every node that
    was handed over may have been touched."""
    task = replace(task, here=here())

    def submit(spec: NodeSpec) -> Future[NodeReport]:
        interrupt.touched.add(spec.name)
        return executor.submit(perform, task.of(spec.name), spec)

    return Site(submit)


@contextlib.contextmanager
def _processes(
    count: int,
    task: Task,
    specs: Sequence[NodeSpec],
    parallel: int,
    interrupt: Interrupt,
    progress: Progress,
) -> Iterator[Site]:
    from gpufleet.run.worker import Setup  # noqa: PLC0415  # most runs need none
    from gpufleet.run.workers import Workers  # noqa: PLC0415
    from gpufleet.ssh.keys import passphrases  # noqa: PLC0415

    def tell(host: str, phase: str, detail: str) -> None:
        if phase in TOUCHING:
            interrupt.touched.add(host)
        progress.on_event(host, phase, detail)

    def may_repeat(task: Task, spec: NodeSpec, way: object) -> bool:
        del task, way
        return not interrupt and spec.name not in interrupt.touched

    workers = Workers(count, tell, progress.on_note, may_repeat)
    try:
        network = _network(specs, progress)
        network.close()  # it has read and asked; they connect
        levels = {
            name: logging.getLogger(name).getEffectiveLevel() for name in ("gpufleet", "paramiko")
        }
        workers.begin(Setup(task.run_id, count, parallel, passphrases(), levels))
        mine = here()
        mine = replace(mine, pids=mine.pids | workers.pids)
        interrupt.also_stop.append(workers.stop)
        interrupt.also_hurry.append(workers.hurry)
        task = replace(task, here=mine, share=count)
        yield Site(
            lambda spec: workers.submit(perform, task.of(spec.name), spec, network.way(spec.name))
        )
    finally:
        workers.shutdown(wait=not interrupt.hurried)
