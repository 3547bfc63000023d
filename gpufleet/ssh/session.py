"""One SSH connection to one node, and scripts run over it. Implements `transport.Transport`."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol

import fabric
import paramiko

from gpufleet.errors import ConnectionLost, ScriptTimeout, Unreachable
from gpufleet.policy import Access
from gpufleet.ssh.watchdog import WATCHDOG
from gpufleet.transport import Answer, AnswerReader, Beat, Script, new_token

_CHUNK = 1 << 16

# paramiko logs tracebacks of its threads; without a handler they would land on the screen.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class Closable(Protocol):
    def close(self) -> None: ...


class Session:
    """A shell on one node. `run` one script at a time; `close` may come from any thread."""

    def __init__(
        self,
        access: Access,
        connection: fabric.Connection,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._access = access
        self._connection = connection
        self._on_close = [on_close]

    def run(self, script: Script, *, timeout_s: float, beat: Beat | None = None) -> Answer:
        """See `Transport.run`. The script goes to standard input of `/bin/sh -s`, whatever the
        login shell is: no pattern stands in an argument list, and no rc file sees it."""
        token = new_token()
        reader = AnswerReader(token, beat)
        client = self._connection.client
        with WATCHDOG.watch(timeout_s, client.close) as watch:
            try:
                stderr, status = self._exchange(script, token, reader, timeout_s)
            except (OSError, EOFError, paramiko.SSHException) as error:
                # The channel's own clock may strike just before the watchdog's.
                if watch.expired or isinstance(error, TimeoutError):
                    raise ScriptTimeout(f"no answer in {timeout_s:.0f} s") from error
                raise ConnectionLost(
                    f"connection lost: {str(error) or type(error).__name__}"
                ) from error
        if reader.finished:
            return reader.answer()
        if watch.expired:
            raise ScriptTimeout(f"no answer in {timeout_s:.0f} s")
        if (
            reader.started or status is None or status < 0
        ):  # -1: paramiko's word for "it never came"
            raise ConnectionLost("connection lost while the script ran")
        raise self._no_shell(reader.noise, stderr, status)

    def also_close(self, network: Closable) -> None:
        """What only this session needs."""
        self._on_close.append(network.close)

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._connection.client.close()
        with contextlib.suppress(IndexError):  # each once, whoever comes first
            while True:
                self._on_close.pop()()

    def _exchange(
        self, script: Script, token: str, reader: AnswerReader, timeout_s: float
    ) -> tuple[bytes, int | None]:
        """Send the script and read until its end marker, not until end of file: a process that
        outlived a kill may keep the channel open."""
        deadline = time.monotonic() + timeout_s
        channel = self._open_channel()
        stderr = b""
        try:
            self._start_shell(channel, min(timeout_s, script.silence_s))
            channel.settimeout(min(timeout_s, script.silence_s))
            with contextlib.suppress(OSError):  # a shell that ended at once is told from its words
                channel.sendall(script.text(token).encode())
                channel.shutdown_write()
            while not reader.finished:
                left_s = deadline - time.monotonic()
                wait_s = min(left_s, script.silence_s)
                if self._access.sudo and not reader.started:
                    wait_s *= 0.9  # before the watchdog, which closes and takes sudo's words along
                channel.settimeout(max(0.0, wait_s))
                try:
                    data = channel.recv(_CHUNK)
                except TimeoutError as error:
                    if self._access.sudo and not reader.started:
                        while channel.recv_stderr_ready() and (more := channel.recv_stderr(_CHUNK)):
                            stderr = (stderr + more)[:4000]
                        raise self._silent_sudo(reader.noise, stderr) from error
                    if script.silence_s < left_s:
                        raise ConnectionLost(
                            f"no sign of life for {script.silence_s:.0f} s"
                        ) from None
                    raise
                while channel.recv_stderr_ready() and (more := channel.recv_stderr(_CHUNK)):
                    stderr = (stderr + more)[:4000]
                if not data:
                    break
                reader.feed(data)
            ended = not reader.started and channel.status_event.wait(1)
            return stderr, channel.exit_status if ended else None
        finally:
            channel.close()

    def _open_channel(self) -> paramiko.Channel:
        transport: paramiko.Transport | None = self._connection.transport
        if transport is None:
            raise ConnectionLost("the connection is closed")
        try:
            return transport.open_session(timeout=self._access.connect_timeout_s)
        except paramiko.SSHException as error:
            refused = isinstance(error, paramiko.ChannelException)
            if not refused and not transport.is_active():
                raise
            limit = f"no answer in {self._access.connect_timeout_s:g} s"
            raise Unreachable(
                "channel",
                f"sshd opens no session: {error if refused else limit}",
                next_step=f"{self._access.ssh_command} true",
                transient=not refused,
            ) from error

    def _start_shell(self, channel: paramiko.Channel, limit_s: float) -> None:
        """For sshd's answer paramiko waits without limit. No script was sent yet."""
        command = "exec sudo -n /bin/sh -s" if self._access.sudo else "exec /bin/sh -s"
        with WATCHDOG.watch(limit_s, self._connection.client.close) as watch:
            try:
                channel.exec_command(command)
            except (OSError, EOFError, paramiko.SSHException) as error:
                if not watch.expired:
                    raise
                raise Unreachable(
                    "channel",
                    f"sshd started no shell: no answer in {limit_s:g} s",
                    next_step=f"{self._access.ssh_command} true",
                    transient=True,
                ) from error

    def _silent_sudo(self, noise: bytes, stderr: bytes) -> Unreachable:
        """`-n` forbids sudo's own question only: a second factor, a directory that is down or a dead
        home may still keep it. No line of the script ran."""
        said = _words(stderr, noise)
        return Unreachable(
            "privilege",
            f"no privilege: sudo started no shell in time{f': {said}' if said else ''}",
            next_step=f"{self._access.ssh_command} sudo -n true",
        )

    def _no_shell(self, noise: bytes, stderr: bytes, status: int | None) -> Unreachable:
        """The login worked and no script started: sudo's own sentence, or a shell that isn't one."""
        said = _words(stderr, noise)
        if self._access.sudo:
            return Unreachable(
                "privilege",
                f"no privilege: {said or f'sudo ended with status {status}'}",
                next_step=f"{self._access.ssh_command} sudo -n true",
            )
        if "GF_TOKEN=" in said or "gf_mark" in said:
            said = "something in its start-up files read the script from standard input"
        return Unreachable(
            "channel",
            f"the login shell ran no script (status {status}): {said or 'it said nothing'}",
            next_step=f"{self._access.ssh_command} /bin/sh -c true",
        )


def _words(stderr: bytes, noise: bytes) -> str:
    return " ".join((stderr + b" " + noise).decode("utf-8", "replace").split())[:300]
