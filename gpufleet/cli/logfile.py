"""`--log-file` and `-vv`: every event of a run as a line, for programs and for people.

Handlers of the standard library's logging: what SSH says goes the same way. A line that can't be
written is one warning, never an error of the run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.cli.streams import note, warn
from gpufleet.masking import masked_command

if TYPE_CHECKING:
    from gpufleet.model import NodeReport
    from gpufleet.run import Progress

OURS = "gpufleet"
SSH = "paramiko"

log = logging.getLogger(f"{OURS}.events")
log.addHandler(logging.NullHandler())  # else Python shows warnings on stderr where nobody logs


class LineFile(logging.Handler):
    """Appends one JSON line per record, each in a single write: runs side by side don't mix theirs."""

    def __init__(self, path: Path, run_id: str) -> None:
        super().__init__()
        self._path = path
        self._run_id = run_id
        self._descriptor = -1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            self._give_up(error)

    def emit(self, record: logging.LogRecord) -> None:
        if self._descriptor < 0:
            return
        line = json.dumps(fields(record, self._run_id)).encode() + b"\n"
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._give_up(error)
        else:
            if written < len(line):
                self._give_up(OSError(0, "the disk took only a part of a line"))

    def close(self) -> None:
        super().close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _give_up(self, error: OSError) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        warn(f"no full log of this run: {self._path}: {error.strerror}")


class PlainLines(logging.Handler):
    """The same on stderr: `02:00:00.123 gpu01 kill: attempt 1: 8 processes`."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", "") in {"retry", "note"}:  # told by the screen already
            return
        line = fields(record, "")
        where = " ".join(str(part) for part in (line["host"], line["event"]) if part)
        note(f"{str(line['time'])[11:23]} {where or record.name}: {line['message']}")


def fields(record: logging.LogRecord, run_id: str) -> dict[str, object]:
    """One event with the keys that every line has, and those of its own (`data`)."""
    time = datetime.fromtimestamp(record.created, timezone.utc)
    message = record.getMessage()
    if record.exc_info and record.exc_info[1]:
        message += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    return {
        "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname,
        "run_id": run_id,
        "host": getattr(record, "host", ""),
        "event": getattr(record, "event", ""),
        "message": masked_command([message]),
        "logger": record.name,
        **getattr(record, "data", {}),
    }


@contextlib.contextmanager
def logging_to(path: Path | None, run_id: str, verbose: int) -> Iterator[None]:
    """Handlers for the time of a run. SSH's own log is wordy: below a warning only with -vv."""
    handlers: list[logging.Handler] = []
    if path is not None:
        handlers.append(LineFile(path, run_id))
    if verbose > 1 and sys.stderr is not None:
        handlers.append(PlainLines())
    if not handlers:
        yield
        return
    loggers = {OURS: logging.DEBUG, SSH: logging.DEBUG if verbose > 1 else logging.WARNING}
    before = {name: logging.getLogger(name).level for name in loggers}
    for name, level in loggers.items():
        logging.getLogger(name).setLevel(level)
        for handler in handlers:
            logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
            for handler in handlers:
                logging.getLogger(name).removeHandler(handler)
        for handler in handlers:
            handler.close()


def logged(progress: Progress) -> Progress:
    """`progress`, with every event written to the log as well."""

    def on_event(host: str, phase: str, detail: str) -> None:
        log.info("%s", detail, extra={"host": host, "event": phase})
        progress.on_event(host, phase, detail)

    def on_report(report: NodeReport) -> None:
        data = {
            "verdict": report.verdict.value,
            "attempts": report.attempts,
            "elapsed_s": report.elapsed_s,
            "killed": len(report.killed),
        }
        for line in report.killed:
            what = f"{line.signal} {line.pid} {line.user} {line.command}"
            log.info("%s", what, extra={"host": report.host, "event": "killed"})
        extra = {"host": report.host, "event": "verdict", "data": data}
        log.info("%s", report.reason or report.verdict.value, extra=extra)
        progress.on_report(report)

    def on_note(text: str) -> None:
        log.warning("%s", text, extra={"event": "note"})
        progress.on_note(text)

    return replace(progress, on_event=on_event, on_report=on_report, on_note=on_note)
