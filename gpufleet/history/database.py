"""The SQLite file: made private, checked before use, its tables.

A rollback journal rather than WAL: home folders on NFS have no shared memory between machines, and
somebody who may only read the file can read it without the right to make a file beside it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

from gpufleet.errors import HistoryError
from gpufleet.history.places import FILE

BUSY_S = 5.0
"""So long another run's write is waited for; each takes some milliseconds."""

VERSION = 1

_TABLES = """
CREATE TABLE runs (
  run_id TEXT PRIMARY KEY,
  started TEXT NOT NULL,          -- UTC, 2026-01-31T02:00:00.123Z
  finished TEXT,                  -- NULL: still going, or ended without a result
  person TEXT NOT NULL,           -- who was behind sudo, and the login it ran as
  control_host TEXT NOT NULL,
  process TEXT NOT NULL,          -- boot id, namespace, pid and start time, to know it by
  inventory TEXT NOT NULL,
  selection TEXT NOT NULL,
  settings TEXT NOT NULL,         -- JSON: what the command line said
  exit_code INTEGER,
  header TEXT NOT NULL            -- JSON: the run's document without its nodes
);
CREATE INDEX runs_by_time ON runs (started);
CREATE TABLE nodes (
  run_id TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  position INTEGER NOT NULL,      -- in the selection
  host TEXT NOT NULL,
  address TEXT NOT NULL,
  started TEXT,                   -- UTC, when it was first contacted
  acted TEXT,                     -- UTC, just before the first change on it
  finished TEXT,                  -- NULL: verdict and reason say what holds if the run ended here
  verdict TEXT NOT NULL,
  reason TEXT NOT NULL,
  attempts INTEGER NOT NULL,
  elapsed_s REAL NOT NULL,
  memory_before_mib TEXT NOT NULL, -- JSON: GPU index -> MiB, null where it couldn't be read
  memory_after_mib TEXT NOT NULL,
  killed TEXT NOT NULL,           -- JSON: pid, user, owner, command, rule, signal of each
  document TEXT NOT NULL,         -- JSON: the node as --json prints it
  PRIMARY KEY (run_id, host)
);
"""


def open_for_writing(folder: Path) -> sqlite3.Connection:
    """The record in `folder`, made if it isn't there (0700, the file 0600).

    For one thread at a time. Raises HistoryError, one line, for a file or folder that others could
    have put there, and sqlite3.Error or OSError for the rest.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / FILE
    _check(folder)
    try:
        # Not opened when it exists: closing a descriptor drops this process's locks on the file.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        _check(file)
    return _opened(file, "rw")


def open_for_reading(file: Path) -> sqlite3.Connection:
    """Read-only where the user may not write; else a run that was killed is tidied up after."""
    return _opened(file, "rw" if os.access(file, os.W_OK) else "ro")


def _opened(file: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file.as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        _prepare(connection, file, mode)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, file: Path, mode: str) -> None:
    version = _version(connection)
    if version > VERSION:
        raise HistoryError(f"{file}: written by a newer gpufleet (form {version}): use that one")
    if version or mode != "rw":
        return
    connection.execute("BEGIN IMMEDIATE")
    if not _version(connection):  # another run may have been quicker
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check(path: Path) -> None:
    """Often root writes here: a link or a file that others made could lead it anywhere."""
    status = path.lstat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise HistoryError(f"{path}: neither a file nor a folder")
    if status.st_uid not in {0, os.geteuid()}:
        raise HistoryError(f"{path}: owned by uid {status.st_uid}: set GPUFLEET_STATE elsewhere")
    if status.st_mode & stat.S_IWOTH:
        raise HistoryError(f"{path}: everybody may write it: chmod o-w {path}")
