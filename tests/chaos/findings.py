"""What the oracle found, by kind. Each kind but the races counts against the product.

Plain data, no judgement.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """The lines of the summary that must be 0."""

    WRONG_CLEAN = "wrong CLEAN"
    KILLED = "protected or foreign processes killed"
    NO_VERDICT = "nodes without verdict, reason or next step"
    HUNG = "resets that hung"
    TRACEBACK = "tracebacks"
    UNTOUCHED = "touched although said or locked otherwise"
    LEFT = "left behind on a node"
    LEAK = "left behind here (threads, descriptors)"
    BROKEN_CHAOS = "rounds that chaos itself couldn't play"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Violation:
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"
