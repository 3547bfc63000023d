"""Writes one run into the record while it goes on.

Invariant: at every moment the file says what holds should the run end right there. A node that
wasn't touched is NOT STARTED; just before its first signal it becomes UNKNOWN; its report replaces
that. So a run that is killed leaves the truth behind, and nobody has to guess it afterwards.

All writing is one thread's. The run waits for it before the first signal on a node, for a moment
at most: a slow, full, broken or unwritable disk is one warning, and the run goes on.
"""

from __future__ import annotations

import json
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import tenacity

from gpufleet.errors import GpufleetError
from gpufleet.history import rows
from gpufleet.history.database import open_for_writing
from gpufleet.history.liveness import own_process
from gpufleet.history.places import FILE
from gpufleet.masking import masked_command
from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.records import dataclass

WAIT_S = 2.0
"""The most that a run is held up by its record, once: what is late then isn't waited for again."""

_CHANGES = frozenset({"before", "stop", "kill", "gpu-reset", "reboot"})
"""Phases of a node that begin to change something on it."""
_STOPPING = frozenset({"stop", "gpu-reset"})
"""Of these, those after which something may have to be started again."""

Job = Callable[[sqlite3.Connection], None]
ToDocument = Callable[[NodeReport], dict[str, Any]]


@dataclass(frozen=True)
class Start:
    """What is known of a run before it begins. `header`: its document without nodes."""

    run_id: str
    started: str
    person: str
    control_host: str
    inventory: str
    selection: str
    settings: Mapping[str, Any]
    header: Mapping[str, Any]
    keep_days: float = 90.0
    """Runs older than this are deleted when this one ends."""
    process: str = field(default_factory=own_process)


class Recorder:
    """One run's record. Every method may be called from any thread, and none raises."""

    def __init__(
        self,
        folder: Path,
        start: Start,
        to_document: ToDocument,
        warn: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._start = start
        self._to_document = to_document
        self._warn = warn
        self._warned = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Job | None, threading.Event]] = queue.SimpleQueue()
        self._broken = threading.Event()
        self._closing = threading.Event()
        self._late = False
        self._database: sqlite3.Connection | None = None
        self._specs: dict[str, NodeSpec] = {}
        self._touched: set[str] = set()
        self._writer = threading.Thread(target=self._write, name="gpufleet-record", daemon=True)

    def begin(self, specs: Sequence[NodeSpec]) -> None:
        """The run and all its nodes, none touched. A record that can't be written shows here."""
        self._specs = {spec.name: spec for spec in specs}
        self._writer.start()

        def job(database: sqlite3.Connection) -> None:
            rows.insert_run(database, self._start)
            for position, spec in enumerate(specs):
                rows.insert_node(database, self._start.run_id, position, self._placeholder(spec))

        self._wait(self._put(job))

    def on_event(self, host: str, phase: str, detail: str) -> None:
        """The first event of a node is its start; the first that changes something is waited for."""
        spec = self._specs.get(host)
        changes = phase in _CHANGES and not (phase == "gpu-reset" and detail)  # its steps
        if spec is None or (host in self._touched and not changes):
            return
        now = utc_now()
        run_id = self._start.run_id
        self._touched.add(host)

        def job(database: sqlite3.Connection) -> None:
            rows.start_node(database, run_id, host, now)
            if changes:
                rows.act_node(database, run_id, self._placeholder(spec, acting=phase), now)

        done = self._put(job)
        if changes:
            self._wait(done)

    def on_report(self, report: NodeReport) -> None:
        now = utc_now()
        run_id = self._start.run_id
        self._put(lambda database: rows.end_node(database, run_id, self._row(report), now))

    def finish(
        self, nodes: Sequence[NodeReport], header: Mapping[str, Any], exit_code: int
    ) -> None:
        """The run's end. Nodes that it never came to have their row by now as well."""
        run_id = self._start.run_id
        limit = datetime.now(timezone.utc) - timedelta(days=self._start.keep_days)
        now = utc_now()

        def job(database: sqlite3.Connection) -> None:
            for report in nodes:
                rows.end_node(database, run_id, self._row(report), now)
            rows.finish_run(database, run_id, header, exit_code)
            rows.prune(database, limit.isoformat(timespec="milliseconds"))

        self._put(job)

    def discard(self) -> None:
        """Nothing was done: there is no run to tell of."""
        self._put(lambda database: rows.delete_run(database, self._start.run_id))

    def close(self) -> None:
        """Wait, for a moment at most, until all that was told is written."""
        if self._writer.ident is None:
            return
        done = threading.Event()
        self._closing.set()
        self._jobs.put((None, done))
        if not done.wait(WAIT_S) and not self._broken.is_set():
            self._tell("the record wasn't finished in time")

    def _put(self, job: Job) -> threading.Event:
        done = threading.Event()
        if not self._broken.is_set():
            self._jobs.put((job, done))
        return done

    def _wait(self, done: threading.Event) -> None:
        if self._late or self._broken.is_set():
            return
        if not done.wait(WAIT_S):
            self._late = True
            self._tell("the record is slow or locked by another run; not waited for")

    def _tell(self, problem: str) -> None:
        """One warning for the whole run: the first is the cause of the others."""
        if self._warned.acquire(blocking=False):
            self._warn(f"no full record of this run: {self._folder / FILE}: {problem}")

    def _write(self) -> None:
        """The writer's life. All jobs that wait go into one transaction."""
        tries = tenacity.Retrying(retry=tenacity.retry_if_exception(self._may_pass), reraise=True)
        last: threading.Event | None = None
        while last is None:
            batch = [self._jobs.get()]
            while not self._jobs.empty():
                batch.append(self._jobs.get())
            last = next((done for job, done in batch if job is None), None)
            if not self._broken.is_set():
                try:
                    jobs = [job for job, _ in batch if job is not None]
                    tries(self._commit, jobs)
                except (GpufleetError, sqlite3.Error, OSError) as error:
                    self._tell(_words(error, self._folder / FILE))
                    self._broken.set()
            for _, done in batch:
                done.set()
        if self._database is not None:
            self._database.close()

    def _commit(self, jobs: Sequence[Job]) -> None:
        if self._database is None:
            self._database = open_for_writing(self._folder)
        _transact(self._database, jobs)

    def _may_pass(self, error: BaseException) -> bool:
        """Another run's lock does: only the end of this one ends the waiting for it."""
        locked = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        return locked and not self._closing.is_set()

    def _placeholder(self, spec: NodeSpec, *, acting: str = "") -> rows.NodeRow:
        """What holds of a node if the run ends now."""
        report = NodeReport(
            spec.name,
            spec.access.address,
            Verdict.NOT_STARTED,
            "the run ended without a report, before anything was changed here",
            f"gpufleet reset --hosts {spec.name}",
        )
        if acting:
            verb = "restore" if acting in _STOPPING else "status"
            reason = "the run ended without a report while this node was reset: state not verified"
            report = replace(
                report,
                verdict=Verdict.UNKNOWN,
                reason=reason,
                next_step=f"gpufleet {verb} --hosts {spec.name}",
                attempts=1,
            )
        return self._row(report)

    def _row(self, report: NodeReport) -> rows.NodeRow:
        return rows.NodeRow(report, json.dumps(self._to_document(report)))


def _transact(database: sqlite3.Connection, jobs: Sequence[Job]) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        for job in jobs:
            job(database)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _words(error: Exception, file: Path) -> str:
    """`database or disk is full`; without the path where it stands in front already."""
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    if "not a database" in text or "malformed" in text:
        text += f": move it away: mv {file} {file}.damaged"
    return masked_command([text.removeprefix(f"{file}: ")])


def utc_now() -> str:
    """In milliseconds: `2026-01-31T02:00:00.123Z`."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
