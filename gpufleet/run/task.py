"""What an engine carries out: one node's work as a function with plain arguments.

Thread, worker process or worker of a cluster: each process has one desk per run, with connections of
its own. What travels to it and back are `Task`, `NodeSpec` and `NodeReport`: plain data, in which there
is neither a secret nor a connection.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.records import dataclass
from gpufleet.run.fanout import untouched
from gpufleet.run.interrupt import Connector, Interrupt
from gpufleet.run.origin import here
from gpufleet.run.turns import Turns, nobodys_turn

if TYPE_CHECKING:
    from gpufleet.reset import Crowd, Here
    from gpufleet.ssh import Network, Way

Command = Literal["reset", "restore", "status", "check"]

Tell = Callable[[str, str, str], None]
"""Called with host, phase and detail."""

TOUCHING = frozenset(
    {"before", "stop", "kill", "free", "clean", "start", "after", "gpu-reset", "reboot"}
)
"""Phases from which on a node is no longer as it was."""


@dataclass(frozen=True)
class Task:
    """What is the same for all nodes of a run. Plain and picklable."""

    command: Command
    run_id: str
    who: str = ""
    dry_run: bool = False
    here: Here | None = None
    """The machine that the run was started on, and the run's own processes there."""
    shown: Mapping[str, Crowd] | None = None
    share: int = 1
    """So many processes share the limits of logins at one sshd."""
    repeatable: bool = False
    """The engine may run it twice for one node: the node then hands back what came of the first."""
    agreed: frozenset[str] | None = None
    """Hosts on which a person agreed to what `escalate` allows; None where nobody was asked."""

    def of(self, name: str) -> Task:
        """The part of it that one node needs: what is sent with each stays small."""
        if self.shown is None:
            return self
        agreed = None if self.agreed is None else self.agreed & {name}
        return replace(self, shown={name: self.shown.get(name, frozenset())}, agreed=agreed)


class Desk:
    """A process's place to work on the nodes of one run: its connections, and its interrupt."""

    def __init__(
        self, interrupt: Interrupt, network: Network, tell: Tell, turns: Turns | None = None
    ) -> None:
        self.interrupt = interrupt
        self._network = network
        self._tell = tell
        self._turns = turns
        self.busy = 0
        """Nodes that are worked on."""
        interrupt.also_cut.append(network.cut)

    @cached_property
    def _here(self) -> Here:
        return here()

    def work(self, task: Task, spec: NodeSpec) -> NodeReport:
        """Carry out `task` on one node. Never raises a `NodeError`."""
        from gpufleet.look import check_node, status_node  # noqa: PLC0415  # see `load`
        from gpufleet.reset import Resetting, reset_node, restore_node  # noqa: PLC0415

        interrupt = self.interrupt

        def on_event(phase: str, detail: str) -> None:
            if phase in TOUCHING:
                interrupt.touched.add(spec.name)
            self._tell(spec.name, phase, detail)

        connector = Connector(spec, interrupt, self._network)
        if task.command == "reset":
            resetting = Resetting(
                task.run_id,
                task.who,
                task.dry_run,
                interrupt.__bool__,
                here=(self._here, *([task.here] if task.here else [])),
                hurried=lambda: interrupt.hurried,
                shown=task.shown,
                repeatable=task.repeatable,
                agreed=task.agreed,
                turn=self._turns.take if self._turns else nobodys_turn,
            )
            report = None
            try:
                report = reset_node(spec, connector, resetting, on_event, connector.anyway)
            finally:
                if self._turns:
                    self._turns.end(spec.name, report)
            return report
        if task.command == "restore":
            lock = f"run {task.run_id} by {task.who}"
            report = restore_node(spec, connector, lock, on_event)
        else:
            look = status_node if task.command == "status" else check_node
            report = look(spec, connector, on_event, interrupt.__bool__)
        failed = report.verdict in {Verdict.UNKNOWN, Verdict.UNREACHABLE}
        if interrupt and failed and spec.name not in interrupt.touched:
            return untouched(spec)
        return report

    def learn(self, name: str, way: Way) -> None:
        self._network.learn(name, way)

    def close(self) -> None:
        self._network.close()


def load() -> None:
    """What work needs beside SSH, 0.03 s: imported while the first logins are under way."""
    import gpufleet.look  # noqa: PLC0415
    import gpufleet.reset  # noqa: F401, PLC0415


def perform(task: Task, spec: NodeSpec, way: Way | None = None) -> NodeReport:
    """`task` on one node, at this process's desk: what any executor can be handed. `way`: the
    machines on the way to it, where a process with the same files has read them."""
    with desk_of(task) as desk:
        if way is not None:
            desk.learn(spec.name, way)
        return desk.work(task, spec)


_lock = threading.Lock()
_desks: dict[str, Desk] = {}
_stopped: dict[str, int] = {}
"""Runs that were told to stop, with the signal: their desk may be gone, or not made yet."""

_REMEMBERED = 64


@contextlib.contextmanager
def desk_of(task: Task, tell: Tell = lambda host, phase, detail: None) -> Iterator[Desk]:
    """The desk of a run in this process, made when first asked for; busy meanwhile.

    Those of other runs that have nothing to do go then: a worker outlives runs that were killed.
    """
    from gpufleet.ssh import Network  # noqa: PLC0415  # 0.1 s that `--help` needn't pay

    idle: list[Desk] = []
    with _lock:
        if task.run_id not in _desks:
            others = [run_id for run_id, desk in _desks.items() if not desk.busy]
            idle = [_desks.pop(run_id) for run_id in others]
            interrupt = Interrupt()
            interrupt.signal = _stopped.get(task.run_id)
            _desks[task.run_id] = Desk(interrupt, Network(task.share), tell)
        desk = _desks[task.run_id]
        desk.busy += 1
    for other in idle:
        other.close()
    try:
        yield desk
    finally:
        with _lock:
            desk.busy -= 1


def keep_desk(run_id: str, desk: Desk) -> None:
    """`perform` finds this one."""
    with _lock:
        _desks[run_id] = desk


def known_desk(run_id: str) -> Desk | None:
    with _lock:
        return _desks.get(run_id)


def stop_run(run_id: str, number: int) -> None:
    """Also for what is handed over to this process only now. Once: what runs after a stop, to put
    things back, isn't cut off by the next word of it."""
    with _lock:
        if run_id in _stopped:
            return
        _stopped[run_id] = number
        while len(_stopped) > _REMEMBERED:
            del _stopped[next(iter(_stopped))]
        desk = _desks.get(run_id)
    if desk is not None:
        desk.interrupt.stop(number)


def close_desk(run_id: str) -> None:
    """The run has ended."""
    with _lock:
        desk = _desks.pop(run_id, None)
    if desk is not None:
        desk.close()
