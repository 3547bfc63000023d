"""Which nodes a command line means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.cli.streams import note
from gpufleet.errors import EmptySelection, SelectionError
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
    shard: str | None = None,
    quiet: bool = False,
) -> tuple[Fleet, list[NodeSpec]]:
    """The fleet and the selected nodes, with the command line's settings over those of the file.

    No node is an error, unless it is `@failed` that there are none of, or a shard's part is empty.
    """
    from gpufleet.cli.failed import WORD, failed_words, may_be_empty  # noqa: PLC0415
    from gpufleet.inventory import (  # noqa: PLC0415
        find_inventory,
        load_fleet,
        parse_settings,
        parse_shard,
    )

    part = None if shard is None else parse_shard(shard)
    overrides = parse_settings(settings)
    fleet = load_fleet(find_inventory(inventory))
    if not quiet:
        for line in fleet.notes:
            note(printable(line))
    texts = [hosts, *(exclude or ()), *([] if limit is None else [limit])]
    special: Mapping[str, Sequence[str]] = {}
    if any(WORD in text for text in texts):
        special = failed_words(fleet, texts, quiet=quiet)
    special = {**special, **_from_sources(fleet, texts, special)}
    try:
        specs = fleet.select(
            hosts, exclude=exclude or (), limit=limit, special=special, overrides=overrides
        )
    except EmptySelection:
        if not (special and may_be_empty(hosts, limit)):
            raise
        specs = []
    return fleet, specs if part is None else part.of_specs(specs)


def _from_sources(
    fleet: Fleet, texts: Sequence[str], special: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Words that only ClusterShell's group sources know → their hosts that the inventory has. What
    it hasn't is told, `--quiet` or not: somebody thinks that it is looked after."""
    from gpufleet.inventory import fold, words  # noqa: PLC0415

    known = {"all", *fleet.groups(), *special}
    asked = [word for text in texts if "@" in text for _, word in words(text)]
    found: dict[str, tuple[str, ...]] = {}
    for word in asked:
        bare = word.removeprefix("@")
        if bare == word or bare in known or bare in found or "[" in bare:
            continue
        from gpufleet.inventory.sources import group_nodes  # noqa: PLC0415  # rarely wanted

        nodes = group_nodes(word)
        if nodes is None:
            continue
        hosts = set(fleet.names())
        found[bare] = tuple(name for name in nodes if name in hosts)
        if not found[bare]:
            named = fold(nodes) if nodes else "no nodes"
            raise SelectionError(f"{word}: the group source names {named}, none in {fleet.path}")
        if gone := [name for name in nodes if name not in hosts]:
            note(printable(f"{word}: left out: {fold(gone)} isn't in {fleet.path}"))
    return found
