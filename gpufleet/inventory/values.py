"""One text → one typed value. Each function raises ValueError saying what would be right.

Input is whatever stood in the file (text, list, mapping or None), or the text of an option. The
caller says what was read and where.
"""

from __future__ import annotations

import difflib
import functools
import os
import pwd
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

MAX_DURATION_S = 24 * 3600.0

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_TOLERANCE = re.compile(r"([0-9]{1,9})(?: ?MiB)?", re.IGNORECASE)
TRUE, FALSE = frozenset({"yes", "true", "on"}), frozenset({"no", "false", "off"})

MAX_PATTERN = 1_000
"""Letters: each is tried on every process of every node."""

ORDINARY = (
    "/usr/sbin/sshd -D",
    "/usr/lib/systemd/systemd-journald",
    "[kworker/0:1]",
    "/usr/sbin/cron -f",
    "/bin/bash",
)
"""Lines of ps on any node. A pattern found in each of them would have everything killed."""


def text(value: object) -> str:
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("write a value or remove the line")
        return value
    if value is None:
        raise ValueError("write a value or remove the line")
    raise ValueError("a single value goes here")


def listed(value: object) -> tuple[object, ...]:
    """One or a list of them, as a tuple."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return (value,)
    raise ValueError("a value or a list goes here")


def yes(value: object) -> bool:
    word = text(value).lower()
    if word not in TRUE | FALSE:
        raise ValueError("yes or no")
    return word in TRUE


def number(value: object, lowest: int, highest: int, rule: str) -> int:
    read = text(value)
    if not re.fullmatch(r"[0-9]{1,9}", read) or not lowest <= int(read) <= highest:
        raise ValueError(rule.format(f"{lowest} to {highest}"))
    return int(read)


def port(value: object) -> int:
    return number(value, 1, 65535, "a port is {}")


def gpus(value: object) -> int:
    return number(value, 1, 64, "a node has {} GPUs")


def attempts(value: object) -> int:
    return number(value, 1, 20, "attempts are {}")


def tolerance(value: object) -> int:
    """MiB: `4` or `4 MiB`."""
    read = text(value)
    match = _TOLERANCE.fullmatch(read)
    if match is None or int(match[1]) > 1_000_000:
        raise ValueError("a tolerance is 0 to 1000000 MiB, such as 4 or 4 MiB")
    return int(match[1])


def duration(value: object) -> float:
    """Seconds: `10s`, `500ms`, `2m`, `1h`, or a plain number of seconds. 0 to 24 hours."""
    match = _DURATION.fullmatch(text(value))
    if match is None:
        raise ValueError("a duration is a number with ms, s, m or h, such as 10s")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > MAX_DURATION_S:
        raise ValueError("24h is the longest duration")
    return seconds


def limit(value: object) -> float:
    """A duration that something may take at most: more than 0."""
    seconds = duration(value)
    if seconds == 0:
        raise ValueError("a limit of 0 leaves no time at all: 10s is usual")
    return seconds


def one_of(value: object, words: Sequence[str]) -> str:
    read = text(value)
    if read not in words:
        near = difflib.get_close_matches(read.lower(), words, n=1)
        choice = f"{', '.join(words[:-1])} or {words[-1]}"
        raise ValueError(f"{choice}{f' (did you mean {near[0]}?)' if near else ''}")
    return read


def pattern(value: object) -> str:
    """A regular expression that finds some processes and leaves ordinary daemons alone."""
    read = text(value)
    _check_pattern(read)
    return read


@functools.cache
def _check_pattern(read: str) -> None:
    # Most files name no pattern, and a start needn't pay for the rooms that know them.
    from gpufleet.inventory.backtracking import explodes  # noqa: PLC0415
    from gpufleet.plan.patterns import SlowPattern, finder  # noqa: PLC0415

    if len(read) > MAX_PATTERN:
        raise ValueError(f"{len(read):,} letters, and {MAX_PATTERN:,} is the most: use a list")
    try:
        with warnings.catch_warnings():
            # FutureWarning: [[:alpha:]] and the like mean something else here than in grep.
            warnings.simplefilter("error")
            found = finder(read)
            endless = explodes(read)
    except (Warning, ValueError, RecursionError) as error:
        raise ValueError(f"no regular expression of Python's: {error}") from error
    if endless:
        raise ValueError(
            "this can take hours on one command line: a repeat within a repeat, or of ways that "
            "take the same text, like (a+)+: one repeat is enough"
        )
    try:
        finds_nothing = found("")
        finds_all = all(found(line) for line in ORDINARY)
    except SlowPattern as error:
        raise ValueError(f"this takes {error}: simplify it") from error
    if finds_nothing:
        raise ValueError("this finds the empty text, so every process: name the workload")
    if finds_all:
        raise ValueError(f'this finds "{ORDINARY[0]}" and every other process: name the workload')


def protected(value: object) -> str:
    """A program's name, `unit:NAME` or `user:NAME`."""
    read = text(value)
    kind, colon, rest = read.rpartition(":")
    if (colon and kind not in {"unit", "user"}) or not rest or re.search(r"\s", read):
        raise ValueError("a program's name, unit:NAME or user:NAME")
    if "/" in rest:
        raise ValueError(f"the program's name without its folder: {rest.rpartition('/')[2]}")
    return read


def command(value: object) -> str:
    """A shell command, or '' for none (where a group's is to be switched off)."""
    if value == "":
        return ""
    read = text(value)
    if not read.strip().removeprefix("local:").strip():
        raise ValueError("write a command after local:")
    if odd := [char for char in read if not char.isprintable() and char not in "\n\t"]:
        raise ValueError(f"a command can't hold the character U+{ord(odd[0]):04X}")
    return read


def guard(value: object) -> str:
    """A command like the others, but always the node's own answer."""
    read = command(value)
    if read.lstrip().startswith("local:"):
        raise ValueError("a guard runs on the node; local: is for before and after")
    return read


def path(value: object, folder: str) -> str:
    """Absolute: `~` is the home of whoever runs gpufleet, all else starts at `folder`."""
    read = text(value)
    if read == "~" or read.startswith("~/"):
        return home() + read[1:]
    expanded = os.path.expanduser(read)  # ~alice
    if expanded.startswith("~"):
        raise ValueError(f"no user {expanded.split('/')[0][1:]} on this machine")
    return str(Path(folder, expanded))


def home() -> str:
    """From HOME, or where that isn't set (cron, systemd) from the password file."""
    given = os.environ.get("HOME", "")
    if Path(given).is_absolute():
        return given.rstrip("/")
    try:
        return pwd.getpwuid(os.getuid()).pw_dir.rstrip("/")
    except KeyError:
        raise ValueError("~ is nobody's home here: write the whole path") from None


HOST_KEYS: tuple[Literal["strict", "accept-new", "off"], ...] = ("strict", "accept-new", "off")
JOBS: tuple[Literal["spare", "kill"], ...] = ("spare", "kill")
STOPS: tuple[Literal["kill", "owner"], ...] = ("kill", "owner")
ESCALATE: tuple[Literal["none", "gpu-reset", "reboot"], ...] = ("none", "gpu-reset", "reboot")
KUBERNETES: tuple[Literal["tell", "drain"], ...] = ("tell", "drain")
