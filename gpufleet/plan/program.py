"""What program a process is: its own name, the script that it interprets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from gpufleet.observation import Process
from gpufleet.plan.names import SHELLS

_PYTHON = re.compile(r"(?:platform-)?(?:python|pypy)[0-9.]*(?:-[a-z]+)?\Z")
_WITH_VALUE = {"-X", "-W", "-Q", "--check-hash-based-pycs"}


def basename(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def program_name(process: Process) -> str:
    """The file name of the executable; where that can't be read, of the first argument.

    Not comm: it is cut to 15 characters and any program may change it.
    """
    if process.exe:
        return basename(process.exe)
    return basename(process.args[0]) if process.args else process.comm


def script_names(process: Process) -> tuple[str, ...]:
    """The script or module that an interpreter runs; empty for other programs and for `-c`.

    /usr/bin/python3 -Es /usr/sbin/tuned -l   ->   ("tuned",)
    python3 -m sglang.launch_server           ->   ("sglang.launch_server", "sglang")
    """
    program = program_name(process)
    if program in SHELLS:
        return tuple(basename(arg) for arg in process.args[1:2] if not arg.startswith("-"))
    if not _PYTHON.match(program):
        return ()
    arguments = iter(process.args[1:])
    for arg in arguments:
        if arg in _WITH_VALUE:
            next(arguments, None)
        elif arg == "-c":
            return ()
        elif re.match(r"-[a-zA-Z]*m\Z", arg):
            module = next(arguments, "")
            return (module, module.partition(".")[0])
        elif not arg.startswith("-"):
            return (basename(arg),)
    return ()


def is_shell(process: Process) -> bool:
    return program_name(process) in SHELLS


def is_interactive_shell(process: Process) -> bool:
    """A login shell, one that leads a session on a terminal, or one that runs neither script nor
    command there (`bash` typed in bash): a person sits behind it."""
    if not is_shell(process):
        return False
    if process.args and process.args[0].startswith("-"):
        return True
    idle = all(re.match(r"--|-[^c]*\Z", argument) for argument in process.args[1:])
    return process.tty != 0 and (process.session == process.pid or idle)


def named(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
