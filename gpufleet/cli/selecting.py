"""Which nodes a command line means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.cli.streams import note
from gpufleet.errors import EmptySelection
from gpufleet.masking import printable

if TYPE_CHECKING:
    from gpufleet.inventory import Fleet
    from gpufleet.policy import NodeSpec


def selected(
    inventory: Path | None,
    hosts: str,
    exclude: list[str] | None,
    limit: str | None,
    settings: Mapping[str, str | list[str] | None],
    *,
    quiet: bool = False,
) -> tuple[Fleet, list[NodeSpec]]:
    """The fleet and the selected nodes, with the command line's settings over those of the file.

    No node is an error, unless it is `@failed` that there are none of.
    """
    from gpufleet.cli.failed import WORD, failed_words, may_be_empty  # noqa: PLC0415
    from gpufleet.inventory import find_inventory, load_fleet, parse_settings  # noqa: PLC0415

    overrides = parse_settings(settings)
    fleet = load_fleet(find_inventory(inventory))
    if not quiet:
        for line in fleet.notes:
            note(printable(line))
    texts = [hosts, *(exclude or ()), *([] if limit is None else [limit])]
    special: Mapping[str, Sequence[str]] = {}
    if any(WORD in text for text in texts):
        special = failed_words(fleet, texts, quiet=quiet)
    try:
        specs = fleet.select(
            hosts, exclude=exclude or (), limit=limit, special=special, overrides=overrides
        )
    except EmptySelection:
        if not (special and may_be_empty(hosts, limit)):
            raise
        specs = []
    return fleet, specs
