"""What a screen can show: colours, blocks or plain letters, and how wide it is. Pure.

Every view is lines of text; `Ink` puts in the colours and the signs that the stream can carry.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from gpufleet.model import Verdict
from gpufleet.records import dataclass

WELL = frozenset({Verdict.CLEAN, Verdict.IDLE, Verdict.BUSY, Verdict.READY})

SEVERITY = (
    Verdict.BROKEN,
    Verdict.UNKNOWN,
    Verdict.UNREACHABLE,
    Verdict.DIRTY,
    Verdict.SKIPPED,
    Verdict.NOT_STARTED,
    Verdict.BUSY,
    Verdict.CLEAN,
    Verdict.IDLE,
    Verdict.READY,
)
"""The worst first: the order in which people want to see nodes."""

_COLOURS = {
    Verdict.CLEAN: "32",
    Verdict.IDLE: "32",
    Verdict.READY: "32",
    Verdict.BUSY: "36",
    Verdict.DIRTY: "33",
    Verdict.SKIPPED: "33",
    Verdict.NOT_STARTED: "33",
    Verdict.UNKNOWN: "35",
    Verdict.BROKEN: "31",
    Verdict.UNREACHABLE: "31",
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_DIGITS = "123456789"


@dataclass(frozen=True)
class Ink:
    """`width`: columns of the terminal, 0 where there is none and nothing is cut or wrapped."""

    colour: bool = False
    unicode: bool = True
    width: int = 0

    @property
    def times(self) -> str:
        return "×" if self.unicode else "x"

    @property
    def dots(self) -> str:
        return "…" if self.unicode else "..."

    def verdict(self, verdict: Verdict, text: str = "") -> str:
        return self._paint(_COLOURS[verdict], text or verdict.value)

    def dim(self, text: str) -> str:
        return self._paint("2", text)

    def bold(self, text: str) -> str:
        return self._paint("1", text)

    def cells(self, readings: Iterable[tuple[int | None, int]]) -> str:
        """One sign per GPU, from (MiB in use, MiB in all): `·` for 0 MiB, a block for the share of
        the memory, `?` unread. Neighbours of one colour share it: a frame has hundreds of cells."""
        signs = [self._sign(used_mib, total_mib) for used_mib, total_mib in readings]
        runs = itertools.groupby(signs, key=lambda sign: sign[0])
        return "".join(self._paint(code, "".join(s for _, s in run)) for code, run in runs)

    def _sign(self, used_mib: int | None, total_mib: int) -> tuple[str, str]:
        if used_mib is None:
            return "35", "?"
        if used_mib == 0:
            return "32", "·" if self.unicode else "."
        steps = _BLOCKS if self.unicode else _DIGITS
        share = min(1.0, used_mib / max(total_mib, 1))
        return "33", steps[min(len(steps) - 1, int(share * len(steps)))]

    def legend(self) -> str:
        """What the signs of `cells` mean, for people who see them for the first time."""
        signs = (
            "· 0 MiB  ▁▄█ share of the memory"
            if self.unicode
            else ". 0 MiB  1-9 tenths of the memory"
        )
        return self.dim(f"{signs}  ? not readable  - no answer")

    def cut(self, text: str, width: int) -> str:
        """`text` in at most `width` columns; a wide letter counts as two. No colours in it yet."""
        if width <= 0:
            return text
        from rich.cells import cell_len, set_cell_size  # noqa: PLC0415  # only screens need it

        if cell_len(text) <= width:
            return text
        return set_cell_size(text, max(0, width - len(self.dots))).rstrip() + self.dots

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


PLAIN = Ink()


def age(seconds: int | None) -> str:
    """`45 s`, `12 min`, `3 h`, `5 d`: two digits are enough to tell a leftover from a newcomer."""
    if seconds is None:
        return ""
    for limit, unit, divisor in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // divisor} {unit}"
    return f"{seconds // 86_400} d"


def amount(mib: int) -> str:
    """`0 MiB`, `812 MiB`, `62 GiB`, `1.2 TiB`: for a glance; exact numbers are in the columns of -v."""
    if mib < 10_240:
        return f"{mib} MiB"
    if mib < 1_024_000:
        return f"{mib / 1024:.0f} GiB"
    return f"{mib / 1_048_576:.1f} TiB"
