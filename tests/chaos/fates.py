"""What must become of each process of a scene: DESIGN §3, written down a second time.

Pure, and independent of gpufleet's plan on purpose: nothing of gpufleet is imported here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tests.simfleet.scene import Proc, Text


class Fate(Enum):
    """DIE: gone wherever a reset says CLEAN. LIVE: alive whatever it says. EITHER: nobody's promise."""

    DIE = "must die"
    LIVE = "must live"
    EITHER = "either"


Row = tuple[Proc, Fate]


@dataclass(frozen=True)
class Part:
    """A piece of a scene: processes with their fates, and what goes with them.

    `job`: a candidate in a scheduler's hands, that makes the node SKIPPED unless jobs are killed.
    `units`: services that systemd starts again. `returns`: something outside a reset's reach does.
    `keeps_memory`: a protected process has memory, so that the node can't become CLEAN.
    """

    name: str
    rows: tuple[Row, ...]
    protect: tuple[str, ...] = ()
    job: bool = False
    units: tuple[str, ...] = ()
    returns: bool = False
    keeps_memory: bool = False

    @property
    def fates(self) -> Mapping[str, Fate]:
        return {proc.label: fate for proc, fate in self.rows}

    @property
    def has_workload(self) -> bool:
        return any(fate is Fate.DIE for _, fate in self.rows)


Maker = Callable[[random.Random], Part]


def _proc(label: str, line: str | tuple[Text, ...], **more: Any) -> Proc:
    return Proc(label, tuple(line.split()) if isinstance(line, str) else line, **more)


def die(label: str, line: str | tuple[Text, ...], **more: Any) -> Row:
    """A workload process; `line` is its command line, blanks between arguments."""
    return _proc(label, line, **more), Fate.DIE


def live(label: str, line: str | tuple[Text, ...], **more: Any) -> Row:
    """A process that no reset may touch."""
    return _proc(label, line, **more), Fate.LIVE


def titled(label: str, title: str, memory: Mapping[int, int] | None = None, **more: Any) -> Row:
    """A workload process that renamed itself by setproctitle."""
    return Proc(label, (title,), memory=memory or {}, retitled=True, **more), Fate.DIE


def tagged(part: Part, tag: str) -> Part:
    """The same part under other labels, so that a scene can have it twice."""

    def renamed(proc: Proc) -> Proc:
        parent = None if proc.parent is None else f"{tag}.{proc.parent}"
        return replace(proc, label=f"{tag}.{proc.label}", parent=parent)

    return replace(part, rows=tuple((renamed(proc), fate) for proc, fate in part.rows))


def spared_whole(part: Part) -> Part:
    """The part where a job protects the whole node: everything lives."""
    return replace(part, rows=tuple((proc, Fate.LIVE) for proc, _ in part.rows))
