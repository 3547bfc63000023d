"""What is known of a run while it goes, and one frame of it as lines. No I/O; safe from any thread.

Taking in an event costs a dictionary entry; all else is done when a frame is asked for, so that a
fleet of thousands doesn't pay for being watched.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from gpufleet.masking import printable
from gpufleet.model import NodeReport, Verdict
from gpufleet.records import dataclass
from gpufleet.render.ink import SEVERITY, WELL, Ink

_READING = re.compile(r"([0-9]{1,4})=([0-9]{1,9}|\?)")
_SILENT = frozenset({"done", "memory"})
"""Events that change no phase: the report says it, or the cells do."""


@dataclass
class Row:
    """One node that was begun. Memory in MiB by GPU index, None where it couldn't be read."""

    began: float
    phase: str = "connect"
    detail: str = ""
    attempt: int = 0
    memory: dict[int, int | None] = field(default_factory=dict)
    report: NodeReport | None = None


class Board:
    """`expected`: GPUs by host, in the order of the selection."""

    def __init__(
        self, expected: Mapping[str, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._expected = dict(expected)
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {}
        self._counts: Counter[Verdict] = Counter()
        self._full_mib = 1

    def begin(self) -> None:
        """Time counts from here: before, somebody may have been asked something."""
        self._began = self._clock()

    def on_event(self, host: str, phase: str, detail: str) -> None:
        with self._lock:
            row = self._rows.get(host)
            if row is None:
                row = self._rows[host] = Row(self._clock())
            if phase == "memory":
                self._read(row, reading(detail))
            if phase in _SILENT:
                return
            row.phase, row.detail = phase, detail
            if phase == "kill":
                row.attempt += 1

    def on_report(self, report: NodeReport) -> None:
        with self._lock:
            row = self._rows.setdefault(report.host, Row(self._clock()))
            row.report, row.attempt = report, report.attempts
            self._counts[report.verdict] += 1
            for gpu in report.gpus:
                self._full_mib = max(self._full_mib, gpu.memory_total_mib or 0)
            self._read(row, {gpu.index: gpu.memory_used_mib for gpu in report.gpus})

    def _read(self, row: Row, memory: Mapping[int, int | None]) -> None:
        row.memory = {**row.memory, **memory}
        self._full_mib = max([self._full_mib, *(used or 0 for used in memory.values())])

    def frame(self, ink: Ink, height: int) -> list[str]:
        """At most `height` lines: the bar, then nodes. Where not all fit: those that failed and those
        that run, and the rest as numbers."""
        with self._lock:
            now = self._clock()
            rows = dict(self._rows)
            head = self._bar(now, ink)
            room = max(1, height - len(head))
            hosts = list(self._expected) if len(self._expected) <= room else _urgent(rows, room - 1)
            name = min(max([4, *map(len, hosts)]), max(12, ink.width // 4) if ink.width else 999)
            lines = [self._line(host, rows.get(host), name, now, ink) for host in hosts]
            if len(hosts) < len(self._expected):
                lines.append(ink.dim(self._rest(rows, set(hosts), ink)))
            return [*head, *lines]

    def _bar(self, now: float, ink: Ink) -> list[str]:
        total, done = len(self._expected), sum(self._counts.values())
        told = f"{done}/{total}  {_clock_time(now - self._began)}"
        width = 20 if 0 < ink.width < 100 else 40
        if ink.width:  # the counts matter more than the bar
            width = max(0, min(width, ink.width - len(told) - 1))
        filled = width * done // max(total, 1)
        full, empty = ("━", "─") if ink.unicode else ("#", "-")
        counts = "  ".join(
            f"{self._counts[v]} {ink.verdict(v)}" for v in SEVERITY if self._counts[v]
        )
        spent = now - self._began
        left = ""
        # Once none waits, the rest is up to the slowest node, of which the others say nothing.
        if len(self._rows) < total and done >= max(3, total // 20):
            left = f", about {_clock_time(spent / done * (total - done))} left"
        bar = full * filled + ink.dim(empty * (width - filled))
        return [
            f"{bar} {told}{left}" if width else told,
            counts or ink.dim("no result yet"),
        ]

    def _line(self, host: str, row: Row | None, name: int, now: float, ink: Ink) -> str:
        title = ink.cut(host, name).ljust(name)
        expected = self._expected.get(host, 0)
        if row is None:
            return ink.dim(f"{title}  waiting")
        cells = ink.cells((row.memory[index], self._full_mib) for index in sorted(row.memory))
        cells += " " * (max(expected, 8) - len(row.memory))
        tries = f"try {row.attempt}" if row.attempt else "     "
        report = row.report
        if report is None:
            word, seconds, said = row.phase.ljust(11), now - row.began, row.detail
        else:
            word = ink.verdict(report.verdict, report.verdict.value.ljust(11))
            seconds, said = report.elapsed_s, "" if report.verdict in WELL else report.reason
        taken = name + 11 + max(expected, 8, len(row.memory)) + 24
        said = printable(said.replace("\n", " "))
        room = max(0, ink.width - taken - 1) if ink.width else 0
        said = ink.cut(said, room) if room or not ink.width else ""
        return f"{title}  {word}  {cells}  {tries}  {seconds:6.1f} s   {said}".rstrip()

    def _rest(self, rows: Mapping[str, Row], shown: set[str], ink: Ink) -> str:
        counts: Counter[str] = Counter()
        for host in self._expected:
            if host not in shown:
                row = rows.get(host)
                counts["waiting" if row is None else _word(row)] += 1
        return f"{ink.dots} " + ", ".join(f"{n} {word}" for word, n in counts.most_common())


def reading(detail: str) -> dict[int, int | None]:
    """`0=150000 1=0 2=?` → MiB by GPU index. What has another form is left out."""
    pairs = (_READING.fullmatch(word) for word in detail.split(" "))
    return {int(p[1]): None if p[2] == "?" else int(p[2]) for p in pairs if p}


def _word(row: Row) -> str:
    return row.report.verdict.value if row.report else "running"


def _urgent(rows: Mapping[str, Row], room: int) -> list[str]:
    """Failed nodes, the worst first and at most half of the room; then running ones, the oldest
    first; then what failed besides."""
    failed = sorted(
        (h for h, row in rows.items() if row.report and row.report.verdict not in WELL),
        key=lambda host: SEVERITY.index(rows[host].report.verdict),  # type: ignore[union-attr]  # as filtered
    )
    running = sorted((h for h, r in rows.items() if r.report is None), key=lambda h: rows[h].began)
    first = failed[: max(room // 2, room - len(running))]
    return [*first, *running[: room - len(first)]]


def _clock_time(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def whole_frame(board: Board, ink: Ink, size: Sequence[int]) -> str:
    """One frame for a terminal of (columns, lines)."""
    fitted = Ink(ink.colour, ink.unicode, size[0])
    return "\n".join(board.frame(fitted, max(4, size[1] - 1)))
