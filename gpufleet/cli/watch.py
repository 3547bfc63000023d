"""`gpufleet status --watch`: the same look again and again, until `q` or ^C.

On the terminal's other screen, so that what stood before comes back; the last look stays.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from gpufleet.cli.showing import View, result_text, show
from gpufleet.cli.streams import is_terminal, write
from gpufleet.errors import UsageError
from gpufleet.inventory import parse_duration

if TYPE_CHECKING:
    from gpufleet.model import RunReport

_LEAST_S = 0.2

_OTHER_SCREEN, _FIRST_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def watch_pause(every: str, view: View) -> float:
    """Seconds between two looks. Raises `UsageError` where nobody could watch."""
    pause_s = parse_duration(every, "--watch")
    if pause_s < _LEAST_S:
        raise UsageError(
            f"--watch {every}: at least {_LEAST_S:g}s: each look is a login on each node"
        )
    if view.json or view.jsonl:
        raise UsageError("--watch is for people: leave out --json and --jsonl, or --watch")
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise UsageError("--watch needs a terminal")
    if os.environ.get("TERM", "") in {"", "dumb"}:
        raise UsageError("--watch needs a terminal that can move its cursor (TERM is dumb)")
    return pause_s


def watch_status(
    report: RunReport, look: Callable[[], RunReport], pause_s: float, view: View
) -> int:
    """Show the first look, then wait, look and show; returns the last look's exit status."""
    with _screen(), contextlib.suppress(KeyboardInterrupt):
        _draw(report, view, pause_s)
        while not _quit_within(pause_s) and (seen := _looked(look)) is not None:
            report = seen
            _draw(report, view, pause_s)
    return show(report, report.exit_code(), view)


def _looked(look: Callable[[], RunReport]) -> RunReport | None:
    """One look in a thread of its own, so that `q` is heard while a node doesn't answer."""
    found: Future[RunReport] = Future()

    def run() -> None:
        try:
            found.set_result(look())
        except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not found.done():
        if _quit_within(0.1):
            return None
    return found.result()


def _draw(report: RunReport, view: View, pause_s: float) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())
    text = result_text(report, view, height=max(6, size.lines - 2))
    told = f"{report.finished[11:19]} UTC, again in {pause_s:g} s, q ends"
    lines = [*text.splitlines(), told]
    write(_HOME + "".join(line + _CLEAR_LINE + "\r\n" for line in lines[:-1]) + told + _CLEAR_BELOW)


def _quit_within(seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            key = os.read(sys.stdin.fileno(), 1)
            if key in {b"q", b"Q", b"\x03", b"\x04", b""}:
                return True
    return False


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """Keys one by one, unechoed, and the other screen; all as before at the end, whatever happens."""
    number, screen = sys.stdin.fileno(), sys.stdout.fileno()
    before = termios.tcgetattr(number)

    def leave() -> None:
        with contextlib.suppress(OSError, termios.error):  # a terminal that is gone
            termios.tcsetattr(number, termios.TCSADRAIN, before)
            os.write(screen, _FIRST_SCREEN.encode())

    def enter() -> None:
        tty.setcbreak(number)
        os.write(screen, _OTHER_SCREEN.encode())

    def pass_on(signum: int, frame: object) -> None:
        """End or stop as the signal has it, with the terminal as it was; ^Z goes on with `fg`."""
        del frame
        leave()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        signal.signal(signum, pass_on)
        enter()

    earlier = {signum: signal.signal(signum, pass_on) for signum in _LEAVING}
    try:
        enter()
        yield
    finally:
        leave()
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
