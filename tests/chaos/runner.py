"""Runs gpufleet's reset in process and notes what came of it, with the node's truth right after.

The only module of chaos that calls the product. Decides nothing.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from dataclasses import dataclass, field

import gpufleet.run
from gpufleet.model import NodeReport
from gpufleet.policy import Access, NodeSpec
from gpufleet.reset import Resetting, reset_node
from gpufleet.run import Interrupt, Progress, new_run_id, run_nodes
from gpufleet.run.interrupt import Connector
from gpufleet.ssh import Network
from tests.simfleet import SimFleet, SimNode

from .drawing import Round
from .truth import Snapshot, now_s, take_snapshot

MARGIN_S = 3.0
"""In place of reset's 15 s: so much later than the node's own limits is a silent node given up."""

CONNECT_S = 1.5
"""Limit of each stage of connecting, in place of 10 s."""


@dataclass
class Outcome:
    """One run over the node and its ghosts. `at_report`: the node's truth right after its report."""

    specs: tuple[NodeSpec, ...]
    started_s: float = 0.0
    ended_s: float = 0.0
    reports: tuple[NodeReport, ...] = ()
    seen: list[NodeReport] = field(default_factory=list)
    at_report: Snapshot | None = None
    error: str = ""
    finished: bool = False


def limit_s(drawn: Round) -> float:
    """No reset may take longer: its budget, its margins, and connecting twice."""
    policy = drawn.policy
    budget = max(policy.timeout_s, policy.dying_timeout_s) + policy.grace_s
    return budget + 2 * MARGIN_S + 2 * (2.5 * CONNECT_S + CONNECT_S) + drawn.ghosts + 4


def quicken() -> None:
    """Short margins for all resets of this process; nothing else of the product is changed."""
    # By name: the attribute gpufleet.reset is the function.
    module = importlib.import_module("gpufleet.reset.wire")
    module._ANSWER_MARGIN_S = MARGIN_S  # type: ignore[attr-defined]


def specs_of(fleet: SimFleet, node: SimNode, drawn: Round) -> tuple[NodeSpec, ...]:
    keys = {
        "port": node.port,
        "identity_file": (str(fleet.identity_file),),
        "known_hosts": (str(fleet.known_hosts),),
        "connect_timeout_s": CONNECT_S,
    }
    network = node.address.rsplit(".", 1)[0]
    names = {node.name: node.address} | {f"ghost{n}": f"{network}.{240 + n}" for n in range(9)}
    chosen = [*list(names)[1 : 1 + drawn.ghosts], node.name][:: -1 if drawn.seed % 2 else 1]
    return tuple(NodeSpec(n, Access(names[n], **keys), drawn.policy) for n in chosen)  # type: ignore[arg-type]


class Runner:
    """One run; `start` returns at once, `join` waits for its end."""

    def __init__(self, fleet: SimFleet, node: SimNode, drawn: Round) -> None:
        self.node = node
        self.drawn = drawn
        self.interrupt = Interrupt()
        self.outcome = Outcome(specs_of(fleet, node, drawn))
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"run {node.name}")

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Has it ended?"""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        outcome = self.outcome
        outcome.started_s = now_s()
        try:
            outcome.reports = self._reset()
            outcome.finished = True
        except BaseException as error:
            logging.getLogger("chaos").exception("run")
            outcome.error = f"{type(error).__name__}: {error}"
        finally:
            outcome.ended_s = now_s()

    def _reset(self) -> tuple[NodeReport, ...]:
        progress = Progress(on_report=self._note)
        specs, parallel = self.outcome.specs, self.drawn.parallel
        if not self.drawn.has("interrupt"):
            return gpufleet.run.reset(specs, parallel=parallel, progress=progress).nodes
        # As gpufleet.run.reset does it, with an interrupt that is at hand.
        resetting = Resetting(new_run_id(), "chaos", interrupted=self.interrupt.__bool__)
        network = Network()
        self.interrupt.also_cut.append(network.cut)

        def work(spec: NodeSpec) -> NodeReport:
            connect = Connector(spec, self.interrupt, network)
            return reset_node(spec, connect, resetting)

        return run_nodes(specs, work, self.interrupt, parallel, progress)

    def _note(self, report: NodeReport) -> None:
        self.outcome.seen.append(report)
        if report.host == self.node.name:
            self.outcome.at_report = take_snapshot(self.node)


class Tracebacks(logging.Handler):
    """Counts what ends in a traceback anywhere in this process: logged, or in a thread."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        for name in ("gpufleet", "chaos"):
            logging.getLogger(name).addHandler(self)
            logging.getLogger(name).propagate = False
        threading.excepthook = self._thread_ended

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.texts.append(logging.Formatter().format(record))

    def _thread_ended(self, args: threading.ExceptHookArgs) -> None:
        record = logging.makeLogRecord({"msg": f"thread {args.thread}", "name": "thread"})
        record.exc_info = (args.exc_type, args.exc_value, args.exc_traceback)  # type: ignore[assignment]
        self.texts.append(f"{time.ctime()} {logging.Formatter().format(record)}")
