"""The live view: frames of a board on a terminal, a few times a second, by one thread of rich's.

Nothing but the given stream is written, and a screen that fails (closed window, lost terminal) costs
the view, never the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO, cast

from gpufleet.model import NodeReport
from gpufleet.render.board import Board, whole_frame
from gpufleet.render.ink import Ink

if TYPE_CHECKING:
    from rich.live import Live

FRAMES_PER_S = 5
"""Fast enough to look alive. A frame of fifty rows costs 6 ms, nearly all of it in rich."""


_SHOW_CURSOR, _HIDE_CURSOR = b"\x1b[?25h\r\n", b"\x1b[?25l"


class Shown:
    """A board on a screen from its first event on: what is asked or warned before has the terminal
    for itself."""

    def __init__(self, board: Board, view: Live, screen: int) -> None:
        """`screen`: the terminal's descriptor."""
        self._board = board
        self._screen = screen
        self._view = view
        self._lock = threading.Lock()
        self._began = False

    def on_event(self, host: str, phase: str, detail: str) -> None:
        self._begin()
        self._board.on_event(host, phase, detail)

    def on_report(self, report: NodeReport) -> None:
        self._begin()
        self._board.on_report(report)

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """^Z gives the terminal back with its cursor, and after `fg` the view goes on."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def pause(number: int, frame: object) -> None:
            del frame
            # The view's locks may be held by the very thread that this interrupts: no call into it.
            self._put(_SHOW_CURSOR)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # stops here, until somebody says `fg`
            signal.signal(number, pause)
            self._put(_HIDE_CURSOR)

        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:  # a shell without job control
            yield
            return
        signal.signal(signal.SIGTSTP, pause)
        try:
            yield
        finally:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _put(self, code: bytes) -> None:
        if self._began:
            with contextlib.suppress(OSError):
                os.write(self._screen, code)

    def over(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """`tell`, with the frame out of the way meanwhile."""

        def told(text: str) -> None:
            with self._lock:
                if self._began:
                    self._view.stop()
                tell(text)
                if self._began:
                    self._view.start(refresh=True)

        return told

    def _begin(self) -> None:
        if self._began:
            return
        with self._lock:
            if not self._began:
                self._board.begin()
                self._view.start(refresh=True)
                self._began = True


@contextlib.contextmanager
def live(board: Board, stream: TextIO, ink: Ink, *, keep: bool) -> Iterator[Shown]:
    """Shows `board` on `stream` while the block runs. `keep`: the last frame stays on the screen."""
    from rich.console import Console  # noqa: PLC0415  # 0.1 s that only a terminal pays
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(
        file=cast("TextIO", _Unbreakable(stream)),
        force_terminal=True,
        color_system="standard" if ink.colour else None,
        highlight=False,
        markup=False,
        emoji=False,
    )

    def frame() -> Text:
        text = Text.from_ansi(whole_frame(board, ink, console.size))
        text.no_wrap, text.overflow = True, "crop"
        return text

    view = Live(
        console=console,
        get_renderable=frame,
        refresh_per_second=FRAMES_PER_S,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    try:
        shown = Shown(board, view, stream.fileno())
        with shown.stoppable():
            yield shown
        view.transient = not keep
    finally:
        view.stop()


class _Unbreakable:
    """A stream that a closed window doesn't turn into an exception of the refreshing thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()
