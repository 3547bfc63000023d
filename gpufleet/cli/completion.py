"""Names for the shell's completion: hosts and groups of fleet.yaml. Says nothing when it knows none."""

from __future__ import annotations

import re

import typer

_WORD = re.compile(r"(.*[,!&^]\s*)?(@?)([^,!&^]*)", re.DOTALL)

_MANY = 200
"""More than that nobody reads: the shell asks again when some letters are typed."""


def complete_hosts(context: typer.Context, incomplete: str) -> list[str]:
    """Ways to go on with the last word of a selection: `gpu01,tr` → `gpu01,training`."""
    match = _WORD.fullmatch(incomplete)
    if match is None:
        return []
    before, at, word = match[1] or "", match[2], match[3]
    try:
        hosts, groups = _names(context)
    except Exception:  # noqa: BLE001  # a broken fleet.yaml must not print into a half-typed line
        return []
    known = [*groups, *([] if at else [*hosts, "all"])]
    return [before + at + name for name in known if name.startswith(word)][:_MANY]


def _names(context: typer.Context) -> tuple[list[str], list[str]]:
    """Hosts and groups of the file that this command line means."""
    from gpufleet.inventory import find_inventory, load_fleet  # noqa: PLC0415  # only at a TAB

    fleet = load_fleet(find_inventory(context.params.get("inventory")))
    return [spec.name for spec in fleet.select("all")], sorted(fleet.groups())
