"""`--shard I/N`: a part of a selection, for machines that share the work without knowing of each other.

Pure. A node's part depends on its name alone: not on the order of the file or of the selection, and
not on which other nodes are selected. So two tasks that read fleet.yaml (or `@failed`) at different
moments may disagree about the fleet, but never take the same node twice, and each leaves to the
others only what they take. The price: parts are equal only on the average (2,500 ± 50 of 20,000 in
8 parts, 4 ± 2 of 16 in 4).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from gpufleet.errors import UsageError
from gpufleet.inventory.problems import show
from gpufleet.policy import NodeSpec
from gpufleet.records import dataclass

MAX_SHARDS = 100_000
"""As many as a fleet may have hosts: more would be empty by arithmetic."""

_SHARD = re.compile(r"(0|[1-9][0-9]{0,8})/(0|[1-9][0-9]{0,8})")
"""Without padding, so that each part is spelled in one way."""


@dataclass(frozen=True)
class Shard:
    """Part `part` of `of`, counted from 1."""

    part: int
    of: int

    def __str__(self) -> str:
        return f"{self.part}/{self.of}"

    def has(self, name: str) -> bool:
        return part_of(name, self.of) == self.part

    def of_specs(self, specs: Sequence[NodeSpec]) -> list[NodeSpec]:
        """Those of `specs` that are in this part, in their order; there may be none."""
        return [spec for spec in specs if self.has(spec.name)]


def part_of(name: str, of: int) -> int:
    """1 to `of`. The same on every machine, in every version: SHA-256, not Python's own hash."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") % of + 1


def parse_shard(text: str) -> Shard:
    """`2/8`. Raises `UsageError`, one line, for what names no part."""
    match = _SHARD.fullmatch(text)
    if match is None:
        raise UsageError(f"--shard: read {show(text)}: part and number of parts, like 2/8")
    shard = Shard(int(match[1]), int(match[2]))
    if not 1 <= shard.of <= MAX_SHARDS:
        raise UsageError(f"--shard: read {show(text)}: 1 to {MAX_SHARDS:,} parts")
    if not 1 <= shard.part <= shard.of:
        counted = f"1/{shard.of} to {shard.of}/{shard.of}" if shard.of > 1 else "1/1"
        raise UsageError(f"--shard: read {show(text)}: parts are counted from 1: {counted}")
    return shard
