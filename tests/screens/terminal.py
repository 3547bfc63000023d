"""A real terminal: tmux with a server of its own, and what stands on its screen."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

MISSING = "" if shutil.which("tmux") else "no tmux on this machine"


class Terminal:
    """`columns` × `rows`; a shell command in it, started at once. Ends with the block."""

    def __init__(
        self,
        command: str,
        columns: int,
        rows: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="screen-"))
        self._socket = self._folder / "tmux"
        unset = "unset NO_COLOR COLUMNS LINES;"
        sets = " ".join(f"export {k}='{v}';" for k, v in (environment or {}).items())
        self._tmux(
            *("-u", "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows)),
            f"{unset} {sets} {command}; code=$?; echo; echo ENDED $code; exec sleep 600",
        )

    def _tmux(self, *arguments: str) -> str:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        environment.pop("TMUX", None)
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return done.stdout

    def screen(self, *, history: bool = False, colours: bool = False) -> str:
        """The lines of the screen without blanks at their ends, and without empty ones at its end."""
        options = [*(["-S", "-"] if history else []), *(["-e"] if colours else [])]
        text = self._tmux("capture-pane", "-p", *options)
        return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n") + "\n"

    def wait(self, done: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, self.screen(history=True)
            time.sleep(0.05)

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def cursor_shown(self) -> bool:
        return self._tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def __enter__(self) -> Terminal:  # noqa: PYI034  # nobody inherits
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tmux("kill-server")
        shutil.rmtree(self._folder, ignore_errors=True)
