"""The line to one node's init: starts the node, sends it commands, reads its answers.

What the commands mean is node/init.pl's business. The node ends when this ends: its init reads the
pipe that only this process holds.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .requirements import SBIN, SimFleetError

ANSWER_S = 60.0
"""Long, because a whole fleet may start on two busy cores; a node alone needs 0.1 s."""


class Conversation:
    """Commands are answered in their order, so several may be sent before the first answer is read.
    Not thread-safe."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._text = b""
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={"PATH": SBIN},
                start_new_session=True,  # ^C is for the owner, who then ends the node
            )

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line.encode() + b"\n")
        except BrokenPipeError:
            raise SimFleetError(f"{self.name}: ended: {self._last_words()}") from None

    def answer(self) -> list[str]:
        """The answer's lines, without its end; SimFleetError when it is an error."""
        lines = []
        while (line := self.line()) != "done":
            if line.startswith("error "):
                raise SimFleetError(f"{self.name}: {line[6:]}")
            lines.append(line)
        return lines

    def line(self) -> str:
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        until = time.monotonic() + ANSWER_S
        while b"\n" not in self._text:
            left = until - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                raise SimFleetError(f"{self.name}: no answer in {ANSWER_S:.0f} s: see {self.log}")
            got = os.read(stream, 65536)
            if not got:
                raise SimFleetError(f"{self.name}: ended: {self._last_words()}")
            self._text += got
        line, _, self._text = self._text.partition(b"\n")
        return line.decode(errors="replace")

    def hang_up(self) -> None:
        """Init ends at end of file, and the node's namespaces with it; `end` waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """Ends the node and everything in it."""
        assert self._process.stdout is not None
        self.hang_up()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _last_words(self) -> str:
        words = self.log.read_text(errors="replace").strip().splitlines()
        return words[-1] if words else "without a word"
