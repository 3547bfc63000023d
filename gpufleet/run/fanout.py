"""Bounded fan-out: at most so many nodes at once, exactly one report each, whatever happens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait

from gpufleet.errors import NodeError, UsageError
from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.records import dataclass
from gpufleet.run.interrupt import Interrupt
from gpufleet.run.rolling import Rolling

PARALLEL = 64
"""Nodes at once. Each costs a thread and a socket here; one sshd login costs its node 10 ms."""

WIND_DOWN_S = 5.0
"""After `^C`: so long for running nodes to come to an end by themselves once their connections are cut."""

_OVERTIME_S = 90.0
"""A node's own limits end it; what is still out so long after them is given up and said to be so."""

_TICK_S = 0.5
"""So often at least it looks up, for deadlines and signals."""

log = logging.getLogger("gpufleet")

Work = Callable[[NodeSpec], NodeReport]

Submit = Callable[[NodeSpec], "Future[NodeReport]"]
"""Hands a node over to be worked on."""


@dataclass(frozen=True)
class Progress:
    """What a run tells while it goes. Called from worker threads and from the caller's own."""

    on_event: Callable[[str, str, str], None] = lambda host, phase, detail: None
    on_report: Callable[[NodeReport], None] = lambda report: None
    on_note: Callable[[str], None] = lambda note: None
    """What concerns the whole run: an unsafe setting, an odd line in a known_hosts file."""
    ask_secret: Callable[[str], str] | None = None
    """Asks a person for a key's passphrase; None where nobody can be asked."""


def run_nodes(
    specs: Sequence[NodeSpec],
    work: Work,
    interrupt: Interrupt,
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    executor: Executor | None = None,
    rolling: Rolling | None = None,
) -> tuple[NodeReport, ...]:
    """`work` for each node, at most `parallel` at once; one report each, in the order of `specs`.

    An own thread pool where no `executor` is given. Raises `UsageError` for names given twice.
    """
    pool = executor or ThreadPoolExecutor(max(1, min(parallel, len(specs))), "gpufleet")
    try:
        return hand_out(
            specs, lambda spec: pool.submit(work, spec), interrupt, parallel, progress, rolling
        )
    finally:
        if executor is None:
            pool.shutdown(wait=False, cancel_futures=True)


def hand_out(
    specs: Sequence[NodeSpec],
    submit: Submit,
    interrupt: Interrupt,
    parallel: int = PARALLEL,
    progress: Progress | None = None,
    rolling: Rolling | None = None,
    places: Callable[[], int] | None = None,
    waited_s: Callable[[str], float] = lambda host: 0.0,
) -> tuple[NodeReport, ...]:
    """The same for whatever takes a node and has its report some time. `places`: so many it can work
    on now, asked each time. `waited_s`: how long a node has waited for others, which isn't its own
    time."""
    progress = progress or Progress()
    rolling = rolling or Rolling()
    if len({spec.name for spec in specs}) != len(specs):
        raise UsageError("a node is in the selection twice")
    if parallel < 1:
        raise UsageError(f"--parallel {parallel}: at least 1")
    reports: dict[str, NodeReport] = {}

    def settle(report: NodeReport) -> None:
        if report.host not in reports:
            reports[report.host] = report
            progress.on_report(report)

    def stopped() -> str:
        return rolling.verdict(tuple(reports.values()), len(specs))

    def limit() -> int:
        return parallel if places is None else min(parallel, places())

    why = ""
    with interrupt.caught():
        left = list(specs)
        for number, size in enumerate(rolling.batches(len(specs))):
            batch, left = left[:size], left[size:]
            _fan_out(batch, submit, interrupt, limit, settle, stopped, waited_s)
            why = stopped()
            if not why and rolling.canary and number == 0 and left:
                canaries = [reports[spec.name] for spec in batch if spec.name in reports]
                why = rolling.canary_verdict(canaries)
            if why or interrupt:
                break
    return tuple(
        reports.get(spec.name) or untouched(spec, "" if interrupt else why) for spec in specs
    )


def _fan_out(
    specs: Sequence[NodeSpec],
    submit: Submit,
    interrupt: Interrupt,
    limit: Callable[[], int],
    settle: Callable[[NodeReport], None],
    stopped: Callable[[], str],
    waited_s: Callable[[str], float],
) -> None:
    """Start nodes as places become free and nothing speaks against it; hand over each report as it
    comes."""
    waiting = iter(specs)
    running: dict[Future[NodeReport], tuple[NodeSpec, float]] = {}
    stopped_at: float | None = None
    while True:
        while (
            not interrupt
            and len(running) < limit()
            and not stopped()
            and (spec := next(waiting, None))
        ):
            running[submit(spec)] = spec, time.monotonic()
        if not running:
            return
        done, _ = wait(running, timeout=_TICK_S, return_when=FIRST_COMPLETED)
        for future in done:
            spec, _ = running.pop(future)
            settle(_result(future, spec))
        now = time.monotonic()
        if interrupt and stopped_at is None:
            stopped_at = now
        if interrupt.hurried:  # a moment for local commands to be ended
            interrupt.tell_hurried()
            done, _ = wait(running, timeout=_TICK_S)
            for future in done:
                spec, _ = running.pop(future)
                settle(_result(future, spec))
        for future, (spec, started) in list(running.items()):
            touched = spec.name in interrupt.touched
            patience_s = _wind_down_s(spec) if touched else WIND_DOWN_S
            late = stopped_at is not None and now - stopped_at > patience_s
            if late or interrupt.hurried:
                reason = "interrupted: state not verified"
                settle(_lost(spec, reason, now - started) if touched else untouched(spec))
                del running[future]
                future.cancel()  # if it hasn't begun, it never does
            elif now - started - waited_s(spec.name) > _limit_s(spec):
                settle(_lost(spec, "gave no result long after its deadline", now - started))
                del running[future]
                future.cancel()


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
    budget_s = max(policy.timeout_s, policy.dying_timeout_s) + policy.grace_s
    budget_s += 4 * policy.owners_s  # stopped, and started
    budget_s += 2 * policy.rungs_s
    return budget_s + spec.hooks.longest_s + _OVERTIME_S


def _wind_down_s(spec: NodeSpec) -> float:
    """An `after` puts back what `before` took away: it gets its time, over a new connection."""
    policy = spec.policy
    if not spec.hooks.after and not policy.restart and policy.escalate == "none":
        return WIND_DOWN_S
    # Of a rung only what it stopped is waited for, until that runs again.
    rung_s = 0.0 if policy.escalate == "none" else 4 * policy.limits.daemon_s
    return (
        rung_s
        + WIND_DOWN_S
        + 2 * spec.access.connect_timeout_s
        + spec.hooks.after_timeout_s
        + 10
        + spec.policy.owners_s
    )


def _lost(spec: NodeSpec, reason: str, elapsed_s: float) -> NodeReport:
    return NodeReport(
        spec.name,
        spec.access.address,
        Verdict.UNKNOWN,
        reason,
        f"gpufleet status --hosts {spec.name}",
        elapsed_s=round(elapsed_s, 3),
        warnings=tuple(_open_ends(spec)),
    )


def _open_ends(spec: NodeSpec) -> Iterator[str]:
    if spec.hooks.after:
        yield "`after` may not have run"
    if spec.policy.escalate != "none":
        yield f"what a GPU reset stopped may not run again: gpufleet restore --hosts {spec.name}"


def untouched(spec: NodeSpec, why: str = "") -> NodeReport:
    """A node that nothing was done on: `why`, or because of an interrupt."""
    return NodeReport(
        spec.name,
        spec.access.address,
        Verdict.NOT_STARTED,
        why or "interrupted before anything was changed",
        f"gpufleet reset --hosts {spec.name}",
    )
