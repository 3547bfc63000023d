"""What `reset/` sees of a node: run a script there, get sections back.

The Protocol, the script and the answer; no connection is made here. A fake for tests implements
`Transport` and nothing more.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Protocol

from gpufleet.errors import ConnectionLost
from gpufleet.records import dataclass

Beat = Callable[[str], None]
"""Called with the text of each heartbeat ("dying: 4711") while a script runs."""


@dataclass(frozen=True)
class Script:
    """Files of node/ in the order in which the shell reads them, and the variables before them."""

    name: str
    files: tuple[str, ...]
    variables: Mapping[str, str]
    silence_s: float = 60.0
    """A script that says nothing for so long isn't there any more: it sends a heartbeat each second
    while it waits, and no single tool may take half of this."""
    shielded: bool = False
    """An interrupt of the run doesn't cut this one off."""

    def text(self, token: str) -> str:
        """The whole script for `/bin/sh -s`; `token` marks the answer and must be unguessable."""
        header = {"GF_TOKEN": token, **self.variables}
        lines = [f"{name}={shlex.quote(value)}" for name, value in header.items()]
        return "\n".join([*lines, *(node_file(name) for name in self.files), ""])


@dataclass(frozen=True)
class Section:
    """Raw standard output of one command on the node, and its exit status (or a word for it).

    Decoded as UTF-8; bytes that aren't become surrogates (`surrogateescape`), so that nothing is lost.
    """

    name: str
    text: str
    status: str


@dataclass(frozen=True)
class Answer:
    """All complete sections of one script by name. `finished`: the end marker came."""

    sections: Mapping[str, Section]
    started: bool
    finished: bool

    def get(self, name: str) -> Section | None:
        return self.sections.get(name)

    def text(self, name: str) -> str:
        section = self.sections.get(name)
        return section.text if section else ""


class Transport(Protocol):
    """A shell on one node. One script at a time; not shared between threads."""

    def run(self, script: Script, *, timeout_s: float, beat: Beat | None = None) -> Answer:
        """Run `script` and return its finished answer.

        Raises `Unreachable` when no shell answered, `ScriptTimeout` after `timeout_s`, and
        `ConnectionLost` when the connection ended before the script did.
        """

    def close(self) -> None:
        """End the connection. Safe to call twice, from any thread, and after a failed open."""


class Connect(Protocol):
    """Opens a transport; raises `Unreachable` with the stage at which it ended."""

    def __call__(self) -> Transport: ...


_COMMENT = re.compile(r"^[ \t]*#.*\n", re.MULTILINE)


@cache
def node_file(name: str) -> str:
    """A file of node/ without its comments, which are half of it and would travel to each node."""
    text = resources.files("gpufleet").joinpath("node", name).read_text(encoding="ascii")
    return _COMMENT.sub("", text)


def new_token() -> str:
    return secrets.token_hex(12)


MAX_ANSWER_BYTES = 64 << 20
"""An answer of 10,000 processes has some 10 MB; more than this is a node gone wild."""

_NOISE_BYTES = 4000


class AnswerReader:
    """Takes the bytes of a channel as they come and finds the marked sections in them.

    What stands outside the sections (rc files, motd, logout hooks) is dropped; the first part of it
    is kept in `noise`, for the case that no script ever starts.
    """

    def __init__(self, token: str, beat: Beat | None = None) -> None:
        self._prefix = b"\n@@" + token.encode() + b" "
        self._beat = beat
        self._buffer = b""
        self._open: str | None = None
        self._body: list[bytes] = []
        self._sections: dict[str, Section] = {}
        self._size = 0
        self._noise = b""
        self.started = False
        self.finished = False

    def feed(self, data: bytes) -> None:
        """Raises `ConnectionLost` when the answer grows past `MAX_ANSWER_BYTES`."""
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            raise ConnectionLost(f"the node sent more than {MAX_ANSWER_BYTES >> 20} MiB of output")
        self._buffer += data
        while not self.finished:
            at = self._buffer.find(self._prefix)
            end = self._buffer.find(b"\n", at + 1) if at >= 0 else -1
            if end < 0:
                break
            line = self._buffer[at + len(self._prefix) : end].decode("ascii", "replace")
            self._take(self._buffer[:at])
            self._buffer = self._buffer[end + 1 :]
            self._mark(line)
        else:
            return
        # What can't be the beginning of a marker is moved on, so that each byte is searched once.
        keep = len(self._buffer) - at if at >= 0 else len(self._prefix) - 1
        split = max(0, len(self._buffer) - keep)
        self._take(self._buffer[:split])
        self._buffer = self._buffer[split:]

    @property
    def noise(self) -> bytes:
        """What came before the script started; all that came, if it never did."""
        pending = b"" if self.started else self._buffer
        return (self._noise + pending)[:_NOISE_BYTES]

    def answer(self) -> Answer:
        return Answer(self._sections, self.started, self.finished)

    def _take(self, data: bytes) -> None:
        if self._open is not None:
            self._body.append(data)
        elif not self.started:
            self._noise = (self._noise + data)[:_NOISE_BYTES]

    def _mark(self, line: str) -> None:
        verb, _, rest = line.partition(" ")
        if verb == "start":
            self.started = True
        elif verb == "finish":
            self.finished = True
        elif verb == "beat" and self._beat is not None:
            self._beat(rest)
        elif verb == "begin":
            self._open, self._body = rest, []
        elif verb == "end":
            name, _, status = rest.rpartition(" ")
            if name == self._open:
                text = b"".join(self._body).decode("utf-8", "surrogateescape")
                self._sections[name] = Section(name, text, status)
            self._open = None
