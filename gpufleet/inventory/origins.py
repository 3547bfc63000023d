"""Where each setting of a host comes from: default, defaults, group, host or command line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpufleet.inventory.nodes import Table, line_of
from gpufleet.inventory.sections import Document, Entry
from gpufleet.inventory.settings import ACCESS_FIELDS, FIELDS, HOOK_FIELDS, POLICY_FIELDS
from gpufleet.policy import NodeSpec
from gpufleet.records import dataclass

_NO_KEYS = frozenset({"limits", "dying_timeout_s"})
"""Fields that no key of the file fills by itself."""


@dataclass(frozen=True)
class Explained:
    """One key: its value in this host's run, and who said so."""

    key: str
    value: object
    origins: tuple[str, ...]
    """`default`, `defaults`, `group NAME`, `host`, `command line`; several where values add up."""
    lines: tuple[int, ...]
    """Line of each in the file, 0 for what doesn't stand there."""


class Origins:
    """Who says what in one file."""

    def __init__(self, document: Document, groups: Mapping[str, frozenset[str]]) -> None:
        self._document = document
        self._groups = groups

    def explain(self, spec: NodeSpec, overrides: Mapping[str, Any]) -> list[Explained]:
        entry = self._document.hosts[spec.name]
        given = bool(entry.address != spec.name)
        told = entry.node.origins if isinstance(entry.node, Table) else {}
        address = (told.get("address", "host"), _line(entry, "address"))
        address = address if given else ("the name", entry.line)
        rows = [Explained("address", spec.access.address, (address[0],), (address[1],))]
        keys = {field: key for key, field in FIELDS.items()}
        parts = (
            (spec.access, ACCESS_FIELDS),
            (spec.policy, POLICY_FIELDS),
            (spec.hooks, HOOK_FIELDS),
        )
        for part, fields in parts:
            for field in type(part).__dataclass_fields__:
                if field not in fields or field in _NO_KEYS:
                    continue
                key = keys.get(field, field)
                said = [("command line", 0)] if field in overrides else []
                said = [*self._said(entry, field, key), *said]
                if field != "protect":
                    said = said[-1:]
                origins = said or [("default", 0)]
                rows.append(
                    Explained(
                        key,
                        getattr(part, field),
                        tuple(origin for origin, _ in origins),
                        tuple(line for _, line in origins),
                    )
                )
        return rows

    def _said(self, host: Entry, field: str, key: str) -> Iterator[tuple[str, int]]:
        """Weakest first."""
        groups = (
            (f"group {name}", group)
            for name, group in self._document.groups.items()
            if host.name in self._groups[name]
        )
        for origin, entry in (("defaults", self._document.defaults), *groups, ("host", host)):
            if field in dict(entry.settings):
                told = entry.node.origins if isinstance(entry.node, Table) else {}
                yield told.get(key, origin), _line(entry, key)


def _line(entry: Entry, key: str) -> int:
    return entry.line if entry.node is None else line_of(entry.node, entry.line, (key,))
