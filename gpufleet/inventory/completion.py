"""Names for shell completion: whatever state the file is in, a list and no error."""

from __future__ import annotations

from pathlib import Path

from gpufleet.errors import GpufleetError
from gpufleet.inventory.loading import load_fleet
from gpufleet.inventory.ranges import natural
from gpufleet.inventory.source import find_inventory


def names_for_completion(path: Path | str | None, *, groups_only: bool = False) -> list[str]:
    """`all`, groups, hosts; empty for a file that can't be used. None: the file found by itself."""
    try:
        fleet = load_fleet(find_inventory(Path(path) if path is not None else None))
    except (GpufleetError, OSError, ValueError):
        return []
    groups = sorted(fleet.groups())
    return groups if groups_only else ["all", *groups, *sorted(fleet.names(), key=natural)]
