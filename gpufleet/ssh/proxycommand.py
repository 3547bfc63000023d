"""ProxyCommand: a program whose standard input and output take the place of a TCP connection.

Own code, because paramiko's leaves a zombie and three pipes behind per connection, spins at end of
file, and fails beyond 1,024 open files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from typing import IO

_SAID = 500


class CommandSocket(socket.socket):
    """Our end of a socket pair; the command has the other one. Closing it ends the command."""

    _command: subprocess.Popen[bytes]
    _stderr: IO[bytes]
    _last_words = ""

    @classmethod
    def start(cls, command: str) -> CommandSocket:
        """`command` as OpenSSH runs it: by the user's shell, replaced by the command."""
        ours, theirs = socket.socketpair()
        made = cls(ours.family, ours.type, ours.proto, fileno=ours.detach())
        made._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the socket
        try:
            made._command = subprocess.Popen(
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=made._stderr,
                start_new_session=True,  # ^C is gpufleet's own business
            )
        except OSError:
            made._stderr.close()
            socket.socket.close(made)
            raise
        finally:
            theirs.close()
        return made

    def said(self) -> str:
        """What it wrote to standard error so far, in one line."""
        with contextlib.suppress(OSError, ValueError):
            self._stderr.seek(0)
            self._last_words = " ".join(self._stderr.read(_SAID).decode("utf-8", "replace").split())
        return self._last_words

    def close(self) -> None:
        super().close()
        if self._command.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._command.pid, signal.SIGTERM)
            try:
                self._command.wait(1)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._command.pid, signal.SIGKILL)
                self._command.wait()
        self.said()
        self._stderr.close()
