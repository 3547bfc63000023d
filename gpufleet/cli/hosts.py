"""`gpufleet hosts`: what a selection means; connects to nothing."""

from __future__ import annotations

from gpufleet.cli.options import (
    AnyHosts,
    Exclude,
    Inventory,
    Json,
    Limit,
)
from gpufleet.cli.selecting import selected
from gpufleet.cli.streams import write


def hosts(
    hosts: AnyHosts = "all",
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    json: Json = False,
) -> int:
    """What a selection means; connects to nothing."""
    from gpufleet.render.document import hosts_document  # noqa: PLC0415  # as above
    from gpufleet.render.text import hosts_text  # noqa: PLC0415

    fleet, specs = selected(inventory, hosts, exclude, limit, {})
    # No node, where @failed stands for none, is an empty table.
    groups: dict[str, list[str]] = {}
    for group, members in fleet.groups().items():
        for name in members:
            groups.setdefault(name, []).append(group)
    text = hosts_document(specs, hosts, groups) + "\n" if json else hosts_text(specs, groups)
    write(text)
    return 0
