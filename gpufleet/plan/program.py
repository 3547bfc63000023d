"""What program a process is: its own name, the script that it interprets. Pure."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

from gpufleet.observation import Process
from gpufleet.plan.names import SHELLS

_PYTHON = re.compile(r"(?:platform-)?(?:python|pypy)[0-9.]*(?:-[a-z]+)?\Z")
_MANY_IN_ONE = {"busybox", "coreutils", "toybox"}
"""Executables that are whatever they are called by."""

_WITH_VALUE = {"-X", "-W", "-Q", "--check-hash-based-pycs"}


def basename(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def program_name(process: Process) -> str:
    """The file name of the executable; where that can't be read, of the first argument.

    Not comm: it is cut to 15 characters and any program may change it.
    """
    return _name(process.exe, process.args[0] if process.args else None, process.comm)


@lru_cache(maxsize=8192)
def _name(exe: str, first: str | None, comm: str) -> str:
    """Asked by each rule of each process, and most are the same on all nodes."""
    if exe and basename(exe) not in _MANY_IN_ONE:
        return basename(exe)
    return comm if first is None else basename(first)


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
    """A login shell (known by the dash before its name, whatever it is), or one on a terminal that
    runs neither script nor command: a person sits there. What computes on a GPU and only calls
    itself `-bash`, as miners do, is none.

    A `bash -c 'while …'` that leads a tmux pane isn't one: it is the respawner.
    """
    if process.args and process.args[0].startswith("-"):
        return is_shell(process) or not process.computes
    if process.tty == 0:
        return False
    if not is_shell(process):
        return script_names(process)[:1] == ("xonsh",) and basename(process.args[-1]) == "xonsh"
    return all(re.match(r"--|-[^c]*\Z", a) for a in process.args[1:])


@lru_cache(maxsize=8192)
def named(name: str, patterns: tuple[str, ...]) -> bool:
    """Is this the name of a program that one of the patterns means?"""
    return name in patterns or _families(patterns).match(name) is not None


@lru_cache(maxsize=64)
def _families(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """All patterns with a `*`, `?` or `[` as one: fnmatch would compile each of them, for each name."""
    return re.compile("|".join(translate(p) for p in patterns if set(p) & set("*?[")) or r"(?!)")


def named_script(name: str, patterns: tuple[str, ...]) -> bool:
    """The same for a script. A user's `apt_bench.py` is none of a family `apt_*`: the system's
    scripts carry no suffix, but for Ansible's."""
    own = name.endswith(".py") and not name.startswith("AnsiballZ_")
    return name in patterns or (not own and named(name, patterns))
