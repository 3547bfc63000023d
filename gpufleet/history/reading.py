"""What the record says: runs, one run's document, and which nodes failed. Changes nothing."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpufleet.errors import HistoryError
from gpufleet.history.database import open_for_reading
from gpufleet.history.liveness import is_alive
from gpufleet.history.places import reading_files
from gpufleet.masking import printable
from gpufleet.model import RESET_VERDICTS, Verdict
from gpufleet.records import dataclass

LAST = "last"


@dataclass(frozen=True)
class Entry:
    """One recorded run without its nodes. `finished` and `exit_code` are None for one that never
    ended by itself, or still goes on."""

    file: Path
    run_id: str
    started: str
    finished: str | None
    person: str
    control_host: str
    process: str
    inventory: str
    selection: str
    settings: dict[str, Any]
    exit_code: int | None
    header: dict[str, Any]
    counts: dict[str, int]
    """Verdict → nodes, for all verdicts of a reset."""

    @property
    def state(self) -> str:
        """`finished`, `running` (seen from its own machine only) or `unfinished`."""
        if self.finished is not None:
            return "finished"
        return "running" if is_alive(self.process) else "unfinished"

    def facts(self) -> dict[str, Any]:
        """The run as `gpufleet history --json` lists it, with stable keys."""
        return {
            "run_id": self.run_id,
            "started": self.started,
            "finished": self.finished,
            "state": self.state,
            "person": self.person,
            "control_host": self.control_host,
            "inventory": self.inventory,
            "selection": self.selection,
            "settings": self.settings,
            "summary": self.counts,
            "exit_code": self.exit_code,
        }


@dataclass(frozen=True)
class Failed:
    """The nodes of one run that weren't CLEAN, in its order; `running` are newer runs passed over."""

    run: Entry
    hosts: tuple[str, ...]
    addresses: dict[str, str]
    """Of each host, then: another inventory may call another machine so."""
    running: tuple[Entry, ...] = ()


def runs(limit: int | None = None, *, files: Sequence[Path] | None = None) -> list[Entry]:
    """The newest `limit` runs (None: all) of every record that may be read, newest first."""
    found: dict[str, Entry] = {}
    for file in reading_files() if files is None else files:
        with _opened(file) as database:
            rows = database.execute(
                "SELECT * FROM runs ORDER BY started DESC, run_id DESC LIMIT ?",
                (-1 if limit is None else limit,),
            ).fetchall()
            for row in rows:
                found.setdefault(row["run_id"], _entry(file, row, _counts(database, row["run_id"])))
    newest = sorted(found.values(), key=lambda entry: (entry.started, entry.run_id), reverse=True)
    return newest[:limit]


def find_run(name: str, *, files: Sequence[Path] | None = None) -> Entry:
    """The run of this id, of this beginning of one, or `last`. HistoryError if there isn't one."""
    newest = runs(1 if name == LAST else None, files=files)
    if name == LAST:
        if not newest:
            raise HistoryError(f"no run is recorded{_looked(files)}")
        return newest[0]
    found = [entry for entry in newest if name and entry.run_id.startswith(name)]
    exact = [entry for entry in found if entry.run_id == name]
    if len(exact or found) == 1:
        return (exact or found)[0]
    shown = printable(name)
    if found:
        ids = ", ".join(entry.run_id for entry in found[:3]) + (", …" if len(found) > 3 else "")
        raise HistoryError(f"run {shown}: {len(found)} begin so: {ids}")
    raise HistoryError(f"no run {shown} is recorded{_looked(files)}: gpufleet history lists them")


def load_run(run_id: str, *, files: Sequence[Path] | None = None) -> dict[str, Any]:
    """The document of a run as `--json` printed it. `run_id` may be a beginning, or `last`.

    Of a run that was killed, `finished` and `exit_code` are null, and each node says how far it
    came: NOT STARTED, or UNKNOWN where something may have been killed. Raises HistoryError.
    """
    entry = find_run(run_id, files=files)
    with _opened(entry.file) as database:
        nodes = [
            json.loads(row["document"])
            for row in database.execute(
                "SELECT document FROM nodes WHERE run_id = ? ORDER BY position", (entry.run_id,)
            )
        ]
    return {**entry.header, "summary": entry.counts, "nodes": nodes}


def failed(name: str | None = None, *, files: Sequence[Path] | None = None) -> Failed:
    """What `@failed` (None: the newest run that has ended) and `@failed:RUN` stand for."""
    passed: list[Entry] = []
    if name is None:
        every = runs(files=files)
        ended = next((entry for entry in every if entry.state != "running"), None)
        if ended is None:
            raise HistoryError(f"@failed: no reset that has ended is recorded{_looked(files)}")
        passed = every[: every.index(ended)]
    else:
        ended = find_run(name, files=files)
        if ended.state == "running":
            raise HistoryError(f"@failed:{printable(name)}: run {ended.run_id} is still going on")
    with _opened(ended.file) as database:
        rows = database.execute(
            "SELECT host, address FROM nodes WHERE run_id = ? AND verdict != ? ORDER BY position",
            (ended.run_id, Verdict.CLEAN.value),
        )
        addresses = {row["host"]: row["address"] for row in rows}
    return Failed(ended, tuple(addresses), addresses, tuple(passed))


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    try:
        database = open_for_reading(file)
        try:
            yield database
        finally:
            database.close()
    except sqlite3.Error as error:
        raise HistoryError(f"{file}: can't be read: {error}") from error


def _entry(file: Path, row: sqlite3.Row, counts: dict[str, int]) -> Entry:
    return Entry(
        file,
        row["run_id"],
        row["started"],
        row["finished"],
        row["person"],
        row["control_host"],
        row["process"],
        row["inventory"],
        row["selection"],
        json.loads(row["settings"]),
        row["exit_code"],
        json.loads(row["header"]),
        counts,
    )


def _counts(database: sqlite3.Connection, run_id: str) -> dict[str, int]:
    rows = database.execute(
        "SELECT verdict, count(*) FROM nodes WHERE run_id = ? GROUP BY verdict", (run_id,)
    )
    found = dict(tuple(row) for row in rows)
    return {verdict.value: found.get(verdict.value, 0) for verdict in RESET_VERDICTS}


def _looked(files: Sequence[Path] | None) -> str:
    places = reading_files() if files is None else files
    return f" in {', '.join(map(str, places))}" if places else ""
