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
    from gpufleet.inventory import names_for_completion  # noqa: PLC0415  # only at a TAB

    # That says nothing of a broken fleet.yaml: it would print into a half-typed line.
    known = names_for_completion(context.params.get("inventory"), groups_only=bool(at))
    return [before + at + name for name in known if name.startswith(word)][:_MANY]
