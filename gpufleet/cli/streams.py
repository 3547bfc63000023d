"""The two standard streams: results to one, notes to the other, whatever state they are in."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import TYPE_CHECKING, TextIO

import typer

from gpufleet.masking import printable

if TYPE_CHECKING:
    from gpufleet.render.ink import Ink


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
    try:
        return open(os.devnull, "w")  # noqa: PTH123  # closed by the exit
    except OSError:  # no descriptor is left
        return io.StringIO()


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


def warn(text: str) -> None:
    """What costs no verdict and wants to be known: one form everywhere."""
    note(printable(f"gpufleet: warning: {text}"))


def ink_for(stream: TextIO | None, *, no_color: bool = False) -> Ink:
    """What this stream can carry. Redirected output has no control codes and is never cut."""
    from gpufleet.render.ink import Ink  # noqa: PLC0415  # only a real start pays for it

    term = os.environ.get("TERM", "")
    screen = is_terminal(stream)
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    colour = screen and not no_color and not os.environ.get("NO_COLOR") and term not in _NO_CODES
    # The kernel's own console speaks UTF-8, but its fonts lack most block signs.
    plain = term in {*_NO_CODES, "linux"} or os.environ.get("LC_ALL") in {"C", "POSIX"}
    # ... and under LC_ALL=C Python writes UTF-8 although the terminal was said not to.
    signs = encoding.startswith("utf") and not (screen and plain)
    width = 0
    if screen and stream is not None:
        try:
            width = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            width = 80
    return Ink(colour, signs, width)


_NO_CODES = ("", "dumb")
"""Values of TERM for screens that move no cursor and know no colour."""
