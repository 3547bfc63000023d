"""The two standard streams: results to one, notes to the other, whatever state they are in."""

from __future__ import annotations

import os
import signal
import sys
from typing import TextIO

import typer


def write(text: str) -> None:
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away: the result is lost to it, not the run
        sys.stdout = nowhere()
        raise typer.Exit(128 + signal.SIGPIPE) from None


def nowhere() -> TextIO:
    """In place of a stream that can't be written: it would be flushed once more at exit."""
    return open(os.devnull, "w")  # noqa: PTH123  # closed by the exit


def is_terminal(stream: TextIO | None) -> bool:
    """False also for a stream that is closed or absent, as under cron."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def note(line: str) -> None:
    if sys.stderr is not None:
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:  # a full disk takes the note, never the verdict
            sys.stderr = nowhere()
