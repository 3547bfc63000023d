"""`gpufleet hosts`: what a selection means; connects to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.options import (
    AnyHosts,
    Exclude,
    Inventory,
    Json,
    Limit,
    Shard,
)
from gpufleet.cli.selecting import selected
from gpufleet.cli.streams import write


def hosts(
    hosts: AnyHosts = "all",
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    shard: Shard = None,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="HOST", help="Every setting of a host, and who says so"),
    ] = None,
    json: Json = False,
) -> int:
    """What a selection means; connects to nothing."""
    if explain is not None:
        return _explain(inventory, explain, json)
    from gpufleet.render.document import hosts_document  # noqa: PLC0415  # as above
    from gpufleet.render.text import hosts_text  # noqa: PLC0415

    fleet, specs = selected(inventory, hosts, exclude, limit, {}, shard=shard)
    # No node, where @failed stands for none, is an empty table.
    groups: dict[str, list[str]] = {}
    for group, members in fleet.groups().items():
        for name in members:
            groups.setdefault(name, []).append(group)
    text = hosts_document(specs, hosts, groups) + "\n" if json else hosts_text(specs, groups)
    write(text)
    return 0


def _explain(inventory: Path | None, host: str, json: bool) -> int:
    from gpufleet.inventory import find_inventory, load_fleet  # noqa: PLC0415  # as above
    from gpufleet.render.explain import explain_document, explain_text  # noqa: PLC0415

    fleet = load_fleet(find_inventory(inventory))
    rows = fleet.explain(host)
    write(
        explain_document(host, fleet.path, rows) if json else explain_text(host, fleet.path, rows)
    )
    return 0
