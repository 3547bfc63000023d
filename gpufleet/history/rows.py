"""The statements of the record, one per event of a run. No file is opened here."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpufleet.masking import masked_command, printable
from gpufleet.model import NodeReport
from gpufleet.records import dataclass

if TYPE_CHECKING:
    from gpufleet.history.recorder import Start


@dataclass(frozen=True)
class NodeRow:
    """A node's report and the document of it."""

    report: NodeReport
    document: str

    @property
    def columns(self) -> tuple[object, ...]:
        """verdict, reason, attempts, elapsed_s, memory before and after, killed, document."""
        report = self.report
        killed = [
            {
                "pid": line.pid,
                "user": line.user,
                "owner": line.owner,
                "command": line.command,
                "rule": line.rule,
                "signal": line.signal,
            }
            for line in report.killed
        ]
        return (
            report.verdict.value,
            printable(report.reason),
            report.attempts,
            report.elapsed_s,
            json.dumps({gpu.index: gpu.memory_before_mib for gpu in report.gpus}),
            json.dumps({gpu.index: gpu.memory_used_mib for gpu in report.gpus}),
            json.dumps(killed),
            self.document,
        )


def insert_run(database: sqlite3.Connection, start: Start) -> None:
    settings = {key: _masked(value) for key, value in start.settings.items() if value}
    database.execute(
        "INSERT INTO runs VALUES (?, ?, NULL, ?, ?, ?, ?, ?, ?, NULL, ?)",
        (
            start.run_id,
            start.started,
            printable(start.person),
            printable(start.control_host),
            start.process,
            printable(start.inventory),
            printable(start.selection),
            json.dumps(settings),
            json.dumps(start.header),
        ),
    )


def _masked(value: object) -> object:
    """A pattern of the workload may be copied from a command line with a secret in it."""
    if isinstance(value, str):
        return masked_command([value])
    if isinstance(value, (list, tuple)):
        return [_masked(item) for item in value]
    return value


def insert_node(database: sqlite3.Connection, run_id: str, position: int, row: NodeRow) -> None:
    database.execute(
        "INSERT INTO nodes VALUES (?, ?, ?, ?, NULL, NULL, NULL, ?, ?, ?, ?, ?, ?, ?, ?)",
        (run_id, position, row.report.host, row.report.address, *row.columns),
    )


def start_node(database: sqlite3.Connection, run_id: str, host: str, now: str) -> None:
    database.execute(
        "UPDATE nodes SET started = coalesce(started, ?) WHERE run_id = ? AND host = ?",
        (now, run_id, host),
    )


def act_node(database: sqlite3.Connection, run_id: str, row: NodeRow, now: str) -> None:
    _update(database, run_id, row)
    database.execute(
        "UPDATE nodes SET acted = coalesce(acted, ?) WHERE run_id = ? AND host = ?",
        (now, run_id, row.report.host),
    )


def end_node(database: sqlite3.Connection, run_id: str, row: NodeRow, now: str) -> None:
    _update(database, run_id, row)
    database.execute(
        "UPDATE nodes SET finished = coalesce(finished, ?) WHERE run_id = ? AND host = ?",
        (now, run_id, row.report.host),
    )


def _update(database: sqlite3.Connection, run_id: str, row: NodeRow) -> None:
    database.execute(
        "UPDATE nodes SET verdict = ?, reason = ?, attempts = ?, elapsed_s = ?,"
        " memory_before_mib = ?, memory_after_mib = ?, killed = ?, document = ?"
        " WHERE run_id = ? AND host = ?",
        (*row.columns, run_id, row.report.host),
    )


def finish_run(
    database: sqlite3.Connection, run_id: str, header: Mapping[str, Any], exit_code: int
) -> None:
    database.execute(
        "UPDATE runs SET started = ?, finished = ?, exit_code = ?, header = ? WHERE run_id = ?",
        (header["started"], header["finished"], exit_code, json.dumps(header), run_id),
    )


def delete_run(database: sqlite3.Connection, run_id: str) -> None:
    database.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))


def prune(database: sqlite3.Connection, before: str) -> None:
    """`before`: UTC, ISO 8601; text of this form sorts by time."""
    database.execute("DELETE FROM runs WHERE started < ?", (before,))
