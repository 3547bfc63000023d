"""The log of an act: what was signalled, when all were dead, how the memory fell. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpufleet.records import dataclass


@dataclass(frozen=True)
class ActLog:
    """What an act did. `signals`: pid, start time → the last signal that was really sent.

    `refused`: processes that the kernel didn't let us signal. `dead_s` and `free_s`: seconds from
    the signal until all were dead and until the memory was free, None if that didn't come.
    `stop`: why the watch ended: free, still (nothing left that could change the reading), late,
    dying, unkillable. `readings`: (seconds since the signal, status;row;row).
    """

    signals: Mapping[tuple[int, int], str]
    refused: frozenset[tuple[int, int]]
    dead_s: float | None
    stop: str
    stuck_thread: str
    readings: tuple[tuple[float, str], ...]

    @property
    def free_s(self) -> float | None:
        return self.readings[-1][0] if self.stop == "free" and self.readings else None


def parse_act(text: str) -> ActLog:
    """`PID:START SIGNAL sent|gone|reused|refused`, `dead CS`, `reading CS TEXT`, `stop WHY`."""
    signals: dict[tuple[int, int], str] = {}
    refused = set()
    readings: list[tuple[float, str]] = []
    dead_s: float | None = None
    stop, thread = "", ""
    for line in text.split("\n"):
        if match := re.fullmatch(r"([0-9]+):([0-9]+) ([A-Z]+) (sent|gone|reused|refused)", line):
            identity = int(match[1]), int(match[2])
            if match[4] == "sent":
                signals[identity] = match[3]
            elif match[4] == "refused":
                refused.add(identity)
        elif match := re.fullmatch(r"dead ([0-9]+)", line):
            dead_s = int(match[1]) / 100
        elif match := re.fullmatch(r"reading ([0-9]+) (.*)", line):
            readings.append((int(match[1]) / 100, match[2]))
        elif match := re.fullmatch(r"stop ([a-z]+) ?(.*)", line):
            stop, thread = match[1], match[2]
    return ActLog(signals, frozenset(refused), dead_s, stop, thread, tuple(readings))


@dataclass(frozen=True)
class Again:
    """An act that had begun `since_s` seconds before. `done`: its answer is what this one says."""

    done: bool
    since_s: float


def parse_again(text: str) -> Again | None:
    """`done CS` or `begun CS`; what isn't read that way means that nobody knows what came of it."""
    if not text.strip():
        return None
    match = re.fullmatch(r"(done|begun) ([0-9]+)", text.strip())
    return Again(match[1] == "done", int(match[2]) / 100) if match else Again(done=False, since_s=0)
