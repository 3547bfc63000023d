"""Which nodes may start when: a canary first, then batches, until too many have failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpufleet.errors import UsageError
from gpufleet.model import NodeReport, Verdict
from gpufleet.records import dataclass

FAILURES = frozenset({Verdict.DIRTY, Verdict.BROKEN, Verdict.UNKNOWN, Verdict.UNREACHABLE})
"""What `--max-failures` counts. A node that was skipped was left alone on purpose."""


@dataclass(frozen=True)
class Share:
    """A number of nodes, or a percentage of the whole selection."""

    number: int
    percent: bool = False

    def __str__(self) -> str:
        return f"{self.number}%" if self.percent else str(self.number)

    def of(self, count: int) -> int:
        """So many nodes, rounded up: 25% of 5 are 2."""
        return -(-self.number * count // 100) if self.percent else self.number

    def exceeded(self, failures: int, count: int) -> bool:
        """More than this, exactly: one of 5 is more than 10%, two of 20 are not."""
        return failures * 100 > self.number * count if self.percent else failures > self.number


@dataclass(frozen=True)
class Rolling:
    """How a run goes over its nodes. Without any of these all start as places become free."""

    batch: Share | None = None
    """So many at once; the next batch starts when the former is done."""
    max_failures: Share | None = None
    """More failures than this, of the whole selection: nothing is started any more."""
    canary: int = 0
    """So many first; the others only if all of these are CLEAN."""

    def batches(self, count: int) -> list[int]:
        """The sizes of the batches, in order; they add up to `count`."""
        sizes = [min(self.canary, count)] if self.canary else []
        left = count - sum(sizes)
        size = self.batch.of(count) if self.batch else left
        while left > 0:
            sizes.append(min(size, left))
            left -= sizes[-1]
        return sizes

    def verdict(self, reports: Sequence[NodeReport], count: int) -> str:
        """Why nothing more may start, after these `reports` of `count` nodes; "" if more may."""
        if self.max_failures is None:
            return ""
        failed = [report.host for report in reports if report.verdict in FAILURES]
        if self.max_failures.exceeded(len(failed), count):
            names = ", ".join(failed[:5]) + (", …" if len(failed) > 5 else "")
            verb = "is" if len(failed) == 1 else "are"
            number = "1 failure" if len(failed) == 1 else f"{len(failed)} failures"
            return f"{number} ({names}) {verb} more than --max-failures {self.max_failures}"
        return ""

    def canary_verdict(self, reports: Sequence[NodeReport]) -> str:
        """Why the others stay alone, when the canaries' `reports` are in; "" if all are CLEAN."""
        ill = [f"{r.host} is {r.verdict}" for r in reports if r.verdict is not Verdict.CLEAN]
        return f"canary {', '.join(ill[:5])}" if ill else ""


def parse_rolling(
    batch: str | int | None = None, max_failures: str | int | None = None, canary: int = 0
) -> Rolling:
    """Of the options' texts. Raises UsageError with the option, what was read and what would do."""
    if canary < 0:
        raise UsageError(f"--canary {canary}: a number of nodes, 1 or more (0 for none)")
    parsed = _share("--batch", batch)
    if parsed is not None and parsed.number == 0:
        raise UsageError(f"--batch {parsed}: at least one node, like 4 or 25%")
    return Rolling(parsed, _share("--max-failures", max_failures), canary)


def _share(option: str, value: str | int | None) -> Share | None:
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})(%?)", str(value).strip())
    if not match or (match[2] and int(match[1]) > 100):
        cure = "a number of nodes or a percentage of the selection, like 4 or 25%"
        raise UsageError(f'{option}: read "{value}": {cure}')
    return Share(int(match[1]), bool(match[2]))
