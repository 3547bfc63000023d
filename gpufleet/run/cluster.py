"""An existing Dask cluster as the engine of a run. Imports Dask where it is used.

Its workers use their own keys, agents and known_hosts files; what travels to them is plain data. Dask
may run a task twice, when it loses sight of a worker: the node then refuses the second act.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpufleet import __version__
from gpufleet.errors import NodeError, UsageError
from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.run.fanout import Progress
from gpufleet.run.interrupt import Interrupt
from gpufleet.run.origin import here
from gpufleet.run.task import Task, close_desk, desk_of, known_desk

if TYPE_CHECKING:
    from distributed import Client

_CONNECT_S = "10s"

NO_WORKER_S = 60.0
"""So long a run waits for a worker when there is none any more: they are restarted by others."""

_CLOSE_S = 2.0

_LOOK_S = 1.0
"""So often it asks who is there."""


def check_address(address: str) -> None:
    """Dask runs whatever it is sent: who can speak to its scheduler has the fleet's root logins."""
    if not re.fullmatch(r"tls://[^\s/]+:[0-9]+", address):
        raise UsageError(
            f'--scheduler: read "{address}": an address like tls://dask1:8786; only TLS is used, since '
            "whoever can speak to a scheduler runs programs on its workers"
        )


class Cluster:
    """The workers of one scheduler for the time of a run."""

    def __init__(self, client: Client, task: Task, interrupt: Interrupt, tell: Progress) -> None:
        self._client = client
        self._executor = client.get_executor(pure=False, retries=0)
        self._interrupt = interrupt
        self._task = task
        self._lock = threading.Lock()
        self._open: set[Future[NodeReport]] = set()
        self._failed = ""
        self._seen = time.monotonic()
        self._places = 1
        self._ended = threading.Event()
        client.subscribe_topic(topic(task.run_id), lambda event: tell.on_event(*event[1]))
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, spec: NodeSpec) -> Future[NodeReport]:
        """What is heard of a node before its report may come late, so each one handed over counts as
        touched."""
        self._interrupt.touched.add(spec.name)
        outer: Future[NodeReport] = Future()
        if self._failed:
            outer.set_exception(NodeError(self._failed))
            return outer
        inner = self._executor.submit(work, self._task.of(spec.name), spec)
        with self._lock:
            self._open.add(outer)
        inner.add_done_callback(lambda done: self._settle(outer, done))
        return outer

    def places(self) -> int:
        """Threads of all workers there are now; at least one, so that a run ends by its deadlines."""
        if time.monotonic() - self._seen > NO_WORKER_S and not self._failed:
            self._give_up(f"the Dask cluster has had no worker for {NO_WORKER_S:.0f} s")
        return max(1, self._places)

    def _watch(self) -> None:
        """In a thread of its own: where the scheduler is gone, asking it takes its time."""
        while not self._ended.wait(_LOOK_S):
            self._places = _threads_of(self._client)
            if self._places:
                self._seen = time.monotonic()

    def stop(self, number: int) -> None:
        self._everywhere(_stop, self._task.run_id, number)

    def hurry(self) -> None:
        self._everywhere(_hurry, self._task.run_id)

    def close(self) -> None:
        self._ended.set()
        with contextlib.suppress(Exception):
            self._client.unsubscribe_topic(topic(self._task.run_id))
        self._everywhere(close_desk, self._task.run_id).join(_CLOSE_S)

    def _everywhere(self, function: Callable[..., None], *arguments: object) -> threading.Thread:
        """Beside the tasks, which may fill all threads of a worker; not waited for."""

        def ask() -> None:
            with contextlib.suppress(Exception):  # a worker that is gone needs no word
                self._client.run(function, *arguments, on_error="ignore", wait=False)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return thread

    def _give_up(self, why: str) -> None:
        with self._lock:
            self._failed = f"{why}: state not verified"
            left, self._open = list(self._open), set()
        for future in left:
            future.set_exception(NodeError(self._failed))

    def _settle(self, outer: Future[NodeReport], done: Future[NodeReport]) -> None:
        with self._lock:
            if outer not in self._open:
                return
            self._open.remove(outer)
        if done.cancelled():
            outer.set_exception(NodeError("Dask gave the task up: state not verified"))
        elif (error := done.exception()) is not None:
            outer.set_exception(NodeError(_said(error)))
        else:
            outer.set_result(done.result())


@contextlib.contextmanager
def cluster(
    address: str, task: Task, interrupt: Interrupt, progress: Progress
) -> Iterator[Cluster]:
    """Raises `UsageError`, one line, where the cluster can't be used; nothing was touched then."""
    check_address(address)
    try:
        import distributed  # noqa: PLC0415  # an extra, and half a second
    except ImportError as error:
        raise UsageError(
            "--engine dask: Dask isn't installed: pip install 'gpufleet[dask]'"
        ) from error
    # Its own words about connections come and go; what counts is said here.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except Exception as error:
        raise UsageError(f"--scheduler {address}: {_reason(error)}") from error
    with contextlib.ExitStack() as closing:
        closing.callback(_close, client)
        count = _check_workers(address, client)
        ready = replace(task, here=here(), share=count, repeatable=task.command == "reset")
        engine = Cluster(client, ready, interrupt, progress)
        closing.callback(engine.close)
        interrupt.also_stop.append(engine.stop)
        interrupt.also_hurry.append(engine.hurry)
        yield engine


def _close(client: Client) -> None:
    with contextlib.suppress(Exception):
        client.close(timeout=_CLOSE_S)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, (OSError, TimeoutError)):
        return f"the scheduler can't be reached: {text}"[:300]
    return f"{text} (Dask's TLS settings: DASK_DISTRIBUTED__COMM__TLS__CA_FILE and its like)"[:400]


def _check_workers(address: str, client: Client) -> int:
    """How many there are. Each must have this very version: both sides take each other's data."""
    try:
        found: dict[str, Any] = client.run(_version, on_error="return")
    except Exception as error:
        raise UsageError(f"--scheduler {address}: {_reason(error)}") from error
    if not found:
        raise UsageError(f"--scheduler {address}: it has no workers")
    for worker, version in found.items():
        if isinstance(version, BaseException) and "No module named" in str(version):
            what = f"gpufleet can't be loaded there ({version})"
        elif isinstance(version, BaseException):
            what = _said(version)
        elif version != __version__:
            what = f"gpufleet {version} there, {__version__} here"
        else:
            continue
        raise UsageError(
            f"--scheduler {address}: worker {worker}: {what}: pip install gpufleet=={__version__}"
        )
    return len(found)


def _threads_of(client: Client) -> int:
    try:
        workers = client.scheduler_info(n_workers=-1)["workers"]
    except Exception:  # noqa: BLE001  # not connected just now
        return 0
    return sum(worker["nthreads"] for worker in workers.values())


def _said(error: BaseException) -> str:
    if type(error).__name__ == "KilledWorker":
        return (
            "Dask's workers died one after the other while they had this node: state not verified"
        )
    return f"internal error: {type(error).__name__}: {error}"[:300]


def topic(run_id: str) -> str:
    return f"gpufleet-{run_id}"


# --- on a worker ---------------------------------------------------------------------------------


def work(task: Task, spec: NodeSpec) -> NodeReport:
    """One node's task there. What can't be reached from a worker is said to be seen from it."""
    from distributed import get_worker  # noqa: PLC0415  # as above

    worker = get_worker()

    def tell(host: str, phase: str, detail: str) -> None:
        with contextlib.suppress(Exception):  # a view of what goes on isn't worth a reset
            worker.log_event(topic(task.run_id), (host, phase, detail))

    with desk_of(task, tell) as desk:
        report = desk.work(task, spec)
    if report.verdict is Verdict.UNREACHABLE:
        return replace(report, reason=f"{report.reason} (seen from worker {socket.gethostname()})")
    return report


def _version() -> str:
    return __version__


def _stop(run_id: str, number: int) -> None:
    """In a thread of its own: it is asked for in the loop that the worker speaks to others with."""
    desk = known_desk(run_id)
    if desk is not None:
        threading.Thread(target=desk.interrupt.stop, args=(number,), daemon=True).start()


def _hurry(run_id: str) -> None:
    desk = known_desk(run_id)
    if desk is not None:
        desk.interrupt.hurried = True
