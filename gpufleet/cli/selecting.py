"""Which nodes a command line means, and the question before they are reset."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.cli.streams import is_terminal
from gpufleet.errors import EmptySelection, UsageError

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


def confirm(fleet: Fleet, specs: Sequence[NodeSpec], hosts: str, yes: bool) -> None:
    """Ask once on a terminal. Without one nothing is asked, and only `all` needs a word more."""
    if yes:
        return
    from gpufleet.inventory import fold  # noqa: PLC0415  # as above

    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        if fleet.mentions_all(hosts):
            raise UsageError("--hosts all without a terminal needs --yes")
        return
    names = fold([spec.name for spec in specs])
    print(f"Reset {len(specs)} nodes of {fleet.path}: {names}", file=sys.stderr)
    print("Every workload process on them is killed. Go on? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError("not confirmed, nothing was done")
