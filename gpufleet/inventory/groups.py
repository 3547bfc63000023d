"""Which hosts a group has: groups may name groups. Names in, names out; no settings here."""

from __future__ import annotations

from collections.abc import Mapping

from gpufleet.errors import SelectionError
from gpufleet.inventory.problems import Problems
from gpufleet.inventory.sections import Entry
from gpufleet.inventory.selection import Vocabulary, evaluate

MAX_NESTING = 100
"""Groups within groups; each level costs Python frames."""

MAX_MEMBERSHIPS = 2_000_000
"""Hosts of all groups together: 20 groups of 100,000."""


def resolve_groups(
    groups: Mapping[str, Entry],
    hosts: Mapping[str, Entry],
    jump_hosts: Mapping[str, Entry],
    problems: Problems,
) -> dict[str, frozenset[str]]:
    """Group → its hosts. Unknown names and circles are noted in `problems`."""
    resolver = _Resolver(groups, hosts, jump_hosts, problems)
    return {name: resolver.members(name) or frozenset() for name in groups}


class _Resolver:
    def __init__(
        self,
        groups: Mapping[str, Entry],
        hosts: Mapping[str, Entry],
        jump_hosts: Mapping[str, Entry],
        problems: Problems,
    ) -> None:
        self._groups = groups
        self._problems = problems
        self._vocabulary = Vocabulary(hosts, self.members, groups, jump_hosts)
        self._done: dict[str, frozenset[str]] = {}
        self._under_way: list[str] = []
        self._memberships = 0

    def members(self, name: str) -> frozenset[str] | None:
        """Each group is worked out once: naming groups costs no more than naming hosts."""
        if name in self._done or name not in self._groups:
            return self._done.get(name)
        entry = self._groups[name]
        if name in self._under_way:
            circle = " > ".join([*self._under_way[self._under_way.index(name) :], name])
            self._problems.stop(
                entry.line, entry.where, f"a circle of groups: {circle}: leave one out"
            )
        if len(self._under_way) >= MAX_NESTING:
            text = f"groups nested deeper than {MAX_NESTING} levels"
            self._problems.stop(entry.line, entry.where, text)
        self._under_way.append(name)
        found: set[str] = set()
        for line, text in entry.members:
            found |= self._selected(line, text, entry.where)
        self._under_way.pop()
        self._memberships += len(found)
        if self._memberships > MAX_MEMBERSHIPS:
            text = f"more than {MAX_MEMBERSHIPS:,} hosts in all groups together"
            self._problems.stop(entry.line, entry.where, text)
        self._done[name] = frozenset(found)
        return self._done[name]

    def _selected(self, line: int, text: str, where: str) -> frozenset[str]:
        try:
            return evaluate(text, self._vocabulary, may_be_empty=True)
        except SelectionError as error:
            self._problems.add(line, where, str(error))
            return frozenset()
