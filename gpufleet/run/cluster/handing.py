"""Hands a run's nodes to the workers of a Dask cluster, and hears of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from gpufleet.errors import NodeError
from gpufleet.model import NodeReport
from gpufleet.policy import NodeSpec
from gpufleet.run.cluster.worker import TOPIC, hurry_run, stop_there, work
from gpufleet.run.fanout import Progress
from gpufleet.run.interrupt import Interrupt
from gpufleet.run.task import Task, close_desk

if TYPE_CHECKING:
    from distributed import Client

NO_WORKER_S = 60.0
"""So long a run waits for a worker when there is none any more: they are restarted by others."""

_CLOSE_S = 2.0

_LOOK_S = 1.0
"""So often it asks who is there."""


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
        self._places = sum(_threads_of(client).values())
        self._ended = threading.Event()
        self._stopped: int | None = None
        self._told: set[str] = set()

        def hear(event: tuple[float, tuple[str, str, str, str]]) -> None:
            run_id, *told = event[1]
            if run_id == task.run_id:  # others may be at work as well
                tell.on_event(*told)

        client.subscribe_topic(TOPIC, hear)
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, spec: NodeSpec) -> Future[NodeReport]:
        """What is heard of a node before its report may come late, so each one handed over counts as
        touched."""
        outer: Future[NodeReport] = Future()
        if self._failed:
            outer.set_exception(NodeError(f"{self._failed}: nothing was done"))
            return outer
        try:
            inner = self._executor.submit(work, self._task.of(spec.name), spec)
        except Exception as error:  # noqa: BLE001  # the client has closed itself, for one
            text = " ".join(str(error).split())
            outer.set_exception(NodeError(f"Dask takes nothing more ({text}): nothing was done"))
            return outer
        self._interrupt.touched.add(spec.name)
        with self._lock:
            self._open.add(outer)
        inner.add_done_callback(lambda done: self._settle(outer, done))
        # Given up here: if it waits for a worker there, no worker is to take it up later.
        outer.add_done_callback(lambda done: done.cancelled() and inner.cancel())
        return outer

    def places(self) -> int:
        """Threads of all workers there are now; at least one, so that a run ends by its deadlines."""
        if self._client.status in {"closing", "closed"}:
            self._give_up("the Dask scheduler is gone")
        elif time.monotonic() - self._seen > NO_WORKER_S:
            self._give_up(f"the Dask cluster has had no worker for {NO_WORKER_S:.0f} s")
        return max(1, self._places)

    def _watch(self) -> None:
        """In a thread of its own: where the scheduler is gone, asking it takes its time."""
        while not self._ended.wait(_LOOK_S):
            workers = _threads_of(self._client)
            self._places = sum(workers.values())
            if self._places:
                self._seen = time.monotonic()
            if self._stopped is not None:
                self._stop_at(workers.keys() - self._told)

    def stop(self, number: int) -> None:
        self._stopped = number
        self._stop_at(set(_threads_of(self._client)))

    def _stop_at(self, workers: set[str]) -> None:
        """Also at those that come later: they take over nodes of others."""
        if workers:
            self._told |= workers
            self._everywhere(stop_there, self._task.run_id, self._stopped, workers=list(workers))

    def hurry(self) -> None:
        self._everywhere(hurry_run, self._task.run_id)

    def close(self) -> None:
        self._ended.set()
        with contextlib.suppress(Exception):
            self._client.unsubscribe_topic(TOPIC)
        self._everywhere(close_desk, self._task.run_id).join(_CLOSE_S)

    def _everywhere(
        self,
        function: Callable[..., None],
        *arguments: object,
        workers: list[str] | None = None,
    ) -> threading.Thread:
        """Beside the tasks, which may fill all threads of a worker; not waited for."""

        def ask() -> None:
            with contextlib.suppress(Exception):  # a worker that is gone needs no word
                self._client.run(function, *arguments, workers=workers, on_error="ignore")

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return thread

    def _give_up(self, why: str) -> None:
        with self._lock:
            if self._failed:
                return
            self._failed = why
            left, self._open = list(self._open), set()
        for future in left:
            _end(future, NodeError(f"{why}: state not verified"))

    def _settle(self, outer: Future[NodeReport], done: Future[NodeReport]) -> None:
        with self._lock:
            if outer not in self._open:
                return
            self._open.remove(outer)
        if done.cancelled():
            why = "Dask gave the task up, as it does when it loses its scheduler"
            _end(outer, NodeError(f"{why}: state not verified"))
        elif (error := done.exception()) is not None:
            _end(outer, NodeError(said(error)))
        else:
            _end(outer, done.result())


def _end(future: Future[NodeReport], result: NodeReport | NodeError) -> None:
    """Unless it was given up just now."""
    if future.set_running_or_notify_cancel():
        if isinstance(result, NodeError):
            future.set_exception(result)
        else:
            future.set_result(result)


def _threads_of(client: Client) -> dict[str, int]:
    """Of each worker there is, by address."""
    try:
        workers = client.scheduler_info(n_workers=-1)["workers"]
    except Exception:  # noqa: BLE001  # not connected just now
        return {}
    return {address: worker["nthreads"] for address, worker in workers.items()}


def said(error: BaseException) -> str:
    if type(error).__name__ == "KilledWorker":
        return (
            "Dask's workers died one after the other while they had this node: state not verified"
        )
    return f"internal error: {type(error).__name__}: {error}"[:300]
