"""ClusterShell's group sources: `@slurm:gpu`, `@roles:infer`, where this machine has them configured
(groups.conf(5)). Which of their nodes the inventory has is for the caller."""

from __future__ import annotations

import re
from concurrent.futures import Future
from concurrent.futures import TimeoutError as SourceTimeout
from threading import Thread

from ClusterShell.NodeSet import std_group_resolver
from ClusterShell.NodeUtils import GroupResolverError, GroupResolverSourceError, GroupSourceError

from gpufleet.errors import SelectionError
from gpufleet.inventory.problems import show
from gpufleet.inventory.ranges import expand

LIMIT_S = 30.0
"""A source may ask a controller that is down (`sinfo` waits for minutes)."""

_WORD = re.compile(r"@(?:(?P<source>[A-Za-z0-9_][\w.-]*):)?(?P<group>[A-Za-z0-9_][\w.-]*)")
"""ClusterShell puts the names into a shell's command line: nothing that a shell reads comes in."""


def group_nodes(word: str) -> tuple[str, ...] | None:
    """The nodes of `@source:group`, or of `@group` in the default source; None where the default
    source knows no such group.

    Raises SelectionError for a source that isn't there, that fails, or that gives no answer.
    """
    match = _WORD.fullmatch(word)
    if match is None:
        if ":" in word:
            raise SelectionError(f"read {show(word)}: @source:group, of letters, digits and . _ -")
        return None
    source, group = match["source"], match["group"]
    answer: Future[list[str]] = Future()

    def ask() -> None:
        try:
            answer.set_result(std_group_resolver().group_nodes(group, source))
        except BaseException as error:  # noqa: BLE001  # handed to the one who waits
            answer.set_exception(error)

    Thread(target=ask, daemon=True, name="group source").start()
    try:
        found = answer.result(LIMIT_S)
    except SourceTimeout as error:
        raise SelectionError(f"{word}: the group source gave no answer in {LIMIT_S:g} s") from error
    except GroupResolverSourceError as error:
        if source is None:
            return None
        raise SelectionError(
            f"{word}: ClusterShell has no group source {show(source)}: see its groups.conf, "
            f"or the inventory's own groups"
        ) from error
    except (GroupResolverError, GroupSourceError, OSError) as error:
        if source is None:
            return None
        said = " ".join(str(error).split())
        raise SelectionError(f"{word}: the group source failed: {said}") from error
    names = [name for text in found for part in text.split() for name in _expanded(word, part)]
    if not names and source is None:
        return None
    return tuple(dict.fromkeys(names))


def _expanded(word: str, text: str) -> list[str]:
    try:
        return [name for part in re.split(r",(?![^\[]*\])", text) for name in expand(part)]
    except ValueError as error:
        raise SelectionError(f"{word}: the group source gave {show(text)}: {error}") from error
