"""A run over many nodes: selection in, reports out.

Bounded fan-out over any `concurrent.futures.Executor`, a deadline for each node, and `^C`. Promises
exactly one report per node, in the order of the selection, whatever happens to a node or to the run.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from types import FrameType

from gpufleet.errors import NodeError, UsageError
from gpufleet.look import check_node, status_node
from gpufleet.model import NodeReport, RunReport, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.reset import Resetting, reset_node
from gpufleet.transport import Answer, Beat, Script, Transport

PARALLEL = 64
"""Nodes at once. Each costs a thread and a socket here; one sshd login costs its node 10 ms."""

WIND_DOWN_S = 5.0
"""After `^C`: so long for running nodes to come to an end by themselves once their connections are cut."""

_OVERTIME_S = 90.0
"""A node's own limits end it; what is still out so long after them is given up and said to be so."""

log = logging.getLogger("gpufleet")

Work = Callable[[NodeSpec], NodeReport]


@dataclass(frozen=True)
class Progress:
    """What a run tells while it goes. Called from worker threads and from the caller's own."""

    on_event: Callable[[str, str, str], None] = lambda host, phase, detail: None
    on_report: Callable[[NodeReport], None] = lambda report: None


class Interrupt:
    """Stops a run from outside: the first signal in two stages, see `caught`."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._live: set[Transport] = set()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self.signal is not None

    def stop(self, number: int = signal.SIGINT) -> None:
        """Nothing new starts, and every connection is cut: scripts on nodes end by themselves."""
        self.signal = number
        with self._lock:
            live, self._live = self._live, set()
        for transport in live:
            transport.close()

    def guard(self, transport: Transport) -> Transport:
        """Cut this connection as well, should the run be stopped."""
        with self._lock:
            self._live.add(transport)
        if self:
            transport.close()
        return transport

    def release(self, transport: Transport) -> None:
        with self._lock:
            self._live.discard(transport)

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """INT, TERM and HUP stop the run and still give a report; a second one ends at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _frame: FrameType | None) -> None:
            if self:
                raise KeyboardInterrupt
            # Closing connections takes locks that the interrupted thread may hold.
            threading.Thread(target=self.stop, args=(number,), daemon=True).start()
            self.signal = number

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def reset(
    specs: Sequence[NodeSpec],
    *,
    selection: str = "",
    dry_run: bool = False,
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> RunReport:
    """Bring every node to a proven clean slate. `dry_run`: look and plan, send no signal.

    The caller's process gets INT, TERM and HUP handled while this runs (in its main thread only).
    Raises `UsageError`, and touches nothing, when a node has settings that this version doesn't
    carry out: a guard that silently isn't asked would be worse than none.
    """
    _refuse_unsupported(specs, dry_run=dry_run)
    started = _now()
    progress = progress or Progress()
    interrupt = Interrupt()
    run_id = new_run_id()
    resetting = Resetting(run_id, f"{person()}, since {started}", dry_run, interrupt.__bool__)

    def work(spec: NodeSpec) -> NodeReport:
        on_event = partial(progress.on_event, spec.name)
        return reset_node(spec, _Connector(spec, interrupt), resetting, on_event)

    nodes = run_nodes(specs, work, interrupt, parallel, progress, executor)
    return RunReport(run_id, "reset", selection, started, _now(), nodes, dry_run, interrupt.signal)


def _refuse_unsupported(specs: Sequence[NodeSpec], *, dry_run: bool) -> None:
    for spec in specs:
        named = [name for name, value in vars(spec.hooks).items() if value and not dry_run]
        if spec.access.ssh_config:
            named.append("ssh_config")
        if named:
            keys = ", ".join(named)
            raise UsageError(
                f"{spec.name}: this version does not carry out: {keys}; nothing was done"
            )


def status(
    specs: Sequence[NodeSpec],
    *,
    selection: str = "",
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> RunReport:
    """One look at every node; changes nothing."""
    return _look("status", status_node, specs, selection, parallel, progress, executor)


def check(
    specs: Sequence[NodeSpec],
    *,
    selection: str = "",
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> RunReport:
    """Would a reset work? Login, privilege, tools and GPU count of every node; changes nothing."""
    return _look("check", check_node, specs, selection, parallel, progress, executor)


def _look(
    command: str,
    look: Callable[[NodeSpec, Callable[[], Transport]], NodeReport],
    specs: Sequence[NodeSpec],
    selection: str,
    parallel: int,
    progress: Progress | None,
    executor: Executor | None,
) -> RunReport:
    started = _now()
    interrupt = Interrupt()

    def work(spec: NodeSpec) -> NodeReport:
        report = look(spec, _Connector(spec, interrupt))
        if interrupt and report.verdict in {Verdict.UNKNOWN, Verdict.UNREACHABLE}:
            return _untouched(spec)
        return report

    nodes = run_nodes(specs, work, interrupt, parallel, progress or Progress(), executor)
    return RunReport(
        new_run_id(), command, selection, started, _now(), nodes, interrupted_by=interrupt.signal
    )


class _Connector:
    """Opens the SSH connection of one node, known to the interrupt while it lives."""

    def __init__(self, spec: NodeSpec, interrupt: Interrupt) -> None:
        self._spec = spec
        self._interrupt = interrupt

    def __call__(self) -> Transport:
        from gpufleet.ssh import connect  # noqa: PLC0415  # 0.1 s that `--help` needn't pay

        return self._interrupt.guard(_Guarded(connect(self._spec), self._interrupt))


class _Guarded:
    """A transport that the interrupt may close until it is closed."""

    def __init__(self, inner: Transport, interrupt: Interrupt) -> None:
        self._inner = inner
        self._interrupt = interrupt

    def run(self, script: Script, *, timeout_s: float, beat: Beat | None = None) -> Answer:
        return self._inner.run(script, timeout_s=timeout_s, beat=beat)

    def close(self) -> None:
        self._interrupt.release(self)
        self._inner.close()


def run_nodes(
    specs: Sequence[NodeSpec],
    work: Work,
    interrupt: Interrupt,
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> tuple[NodeReport, ...]:
    """`work` for each node, at most `parallel` at once; one report each, in the order of `specs`.

    An own thread pool where no `executor` is given. Raises `UsageError` for names given twice.
    """
    progress = progress or Progress()
    if len({spec.name for spec in specs}) != len(specs):
        raise UsageError("a node is in the selection twice")
    if parallel < 1:
        raise UsageError(f"--parallel {parallel}: at least 1")
    reports: dict[str, NodeReport] = {}
    pool = executor or ThreadPoolExecutor(min(parallel, max(len(specs), 1)), "gpufleet")

    def settle(report: NodeReport) -> None:
        if report.host not in reports:
            reports[report.host] = report
            progress.on_report(report)

    with interrupt.caught():
        try:
            _fan_out(specs, work, interrupt, parallel, pool, settle)
        finally:
            if executor is None:
                pool.shutdown(wait=False, cancel_futures=True)
    return tuple(reports.get(spec.name) or _untouched(spec) for spec in specs)


def _fan_out(
    specs: Sequence[NodeSpec],
    work: Work,
    interrupt: Interrupt,
    parallel: int,
    pool: Executor,
    settle: Callable[[NodeReport], None],
) -> None:
    """Start nodes as places become free; hand over each report as it comes."""
    waiting = iter(specs)
    running: dict[Future[NodeReport], tuple[NodeSpec, float]] = {}
    stopped_at: float | None = None
    while True:
        while not interrupt and len(running) < parallel and (spec := next(waiting, None)):
            running[pool.submit(work, spec)] = spec, time.monotonic()
        if not running:
            return
        done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            spec, _ = running.pop(future)
            settle(_result(future, spec))
        now = time.monotonic()
        if interrupt and stopped_at is None:
            stopped_at = now
        for future, (spec, started) in list(running.items()):
            if stopped_at is not None and now - stopped_at > WIND_DOWN_S:
                settle(_lost(spec, "interrupted: state not verified", now - started))
                del running[future]
            elif now - started > _limit_s(spec):
                settle(_lost(spec, "gave no result long after its deadline", now - started))
                del running[future]


def _result(future: Future[NodeReport], spec: NodeSpec) -> NodeReport:
    """The node's report; a bug in one node's work must not cost the others theirs."""
    try:
        return future.result()
    except NodeError as error:
        return _lost(spec, error.reason, 0)
    except Exception as error:
        log.exception("%s: internal error", spec.name)
        return _lost(spec, f"internal error: {type(error).__name__}: {error}"[:300], 0)


def _limit_s(spec: NodeSpec) -> float:
    policy = spec.policy
    return max(policy.timeout_s, policy.dying_timeout_s) + policy.grace_s + _OVERTIME_S


def _lost(spec: NodeSpec, reason: str, elapsed_s: float) -> NodeReport:
    return NodeReport(
        spec.name,
        spec.access.address,
        Verdict.UNKNOWN,
        reason,
        f"gpufleet status --hosts {spec.name}",
        elapsed_s=round(elapsed_s, 3),
    )


def _untouched(spec: NodeSpec) -> NodeReport:
    return NodeReport(
        spec.name,
        spec.access.address,
        Verdict.NOT_STARTED,
        "interrupted before anything was changed",
        f"gpufleet reset --hosts {spec.name}",
    )


def person() -> str:
    """Who runs this, from where: `alice (as root)@ops1 pid 4711`. The person behind sudo counts."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"
    sudo = os.environ.get("SUDO_USER")
    who = f"{sudo} (as {user})" if sudo and sudo != user else user
    return f"{who}@{socket.gethostname()} pid {os.getpid()}"


def new_run_id() -> str:
    """Sorts by time and is unique among control hosts: `20260131-020000-9f3a1c`."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _now() -> str:
    """UTC in milliseconds: `2026-01-31T02:00:00.123Z`."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


__all__ = ["Interrupt", "Progress", "check", "new_run_id", "reset", "run_nodes", "status"]
