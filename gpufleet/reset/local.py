"""A `local:` hook: a shell command on this machine, with a limit, and ended with all of its group."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from gpufleet.observation.hook import HookAnswer, one_line

_KEPT_BYTES = 8000
_TICK_S = 0.05
_KILL_AFTER_S = 2.0
"""Between TERM and KILL for one that ran out of time."""

_HURRY_S = 0.3
"""The same at an interrupt: whoever sent it waits."""

_LAST_WORDS_S = 0.3
"""What the command started may hold its output open: the end of it isn't waited for long."""


def run_local(
    name: str,
    command: str,
    *,
    timeout_s: float,
    facts: Mapping[str, str],
    stop: Callable[[], bool] = lambda: False,
) -> HookAnswer:
    """Run `command` by /bin/sh in a session of its own, so that a terminal's ^C leaves it alone.

    It comes from the environment and not the argument list, where a pattern could find it should
    this machine be a node as well.
    """
    environment = {f"GPUFLEET_{fact}": value for fact, value in facts.items()}
    script = 'gf_hook=$GF_HOOK; unset GF_HOOK; eval "$gf_hook"'
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", script, name],
            env={**os.environ, **environment, "GF_HOOK": command},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return HookAnswer(failure=str(error))
    with process:
        return _watched(process, timeout_s, stop)


def _watched(
    process: subprocess.Popen[bytes], timeout_s: float, stop: Callable[[], bool]
) -> HookAnswer:
    """Read what it says, the first bytes of it, until it ends or has to."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    said = b""
    word = ""
    until = time.monotonic() + timeout_s
    while process.poll() is None:
        said += _read(pipe, _TICK_S)[: _KEPT_BYTES - len(said)]
        if not word and (stop() or time.monotonic() >= until):
            word = "timeout" if time.monotonic() >= until else "interrupted"
            _end(process, signal.SIGTERM)
            until = time.monotonic() + (_KILL_AFTER_S if word == "timeout" else _HURRY_S)
        elif word and time.monotonic() >= until:
            _end(process, signal.SIGKILL)
            until = time.monotonic() + _KILL_AFTER_S
    if word:
        _end(process, signal.SIGKILL)  # what is left of its group
    until = time.monotonic() + _LAST_WORDS_S
    while len(said) < _KEPT_BYTES and time.monotonic() < until:
        more = _read(pipe, _TICK_S)
        if not more and select.select([pipe], [], [], 0)[0]:  # readable and empty: its end
            break
        said += more[: _KEPT_BYTES - len(said)]
    code = process.returncode
    status = word or str(code if code >= 0 else 128 - code)
    return HookAnswer(status, one_line(said.decode("utf-8", "surrogateescape")))


def _read(pipe: int, wait_s: float) -> bytes:
    if not select.select([pipe], [], [], wait_s)[0]:
        return b""
    try:
        found = os.read(pipe, 1 << 16)
    except BlockingIOError:
        return b""
    if not found:
        time.sleep(wait_s)  # it closed its output and goes on
    return found


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
