"""Jump hosts: which hops a `jump` means, first hop first. They are never selected, never reset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.inventory import settings
from gpufleet.inventory.problems import MAX_SUGGESTIONS, Problems, show, suggest
from gpufleet.inventory.sections import Entry
from gpufleet.policy import Access

MAX_HOPS = 8
"""More is a mistake: each hop adds a connection of its own."""

_OWN_ONLY = frozenset({"jump", "sudo"})
"""What a jump host doesn't take over from `defaults`: it would jump through itself."""


class JumpHosts:
    """The jump hosts of one file."""

    def __init__(
        self, entries: Mapping[str, Entry], defaults: settings.Level, problems: Problems
    ) -> None:
        shared = {
            key: value
            for key, value in defaults
            if key in settings.ACCESS_FIELDS and key not in _OWN_ONLY
        }
        self._entries = entries
        self._suggestions = MAX_SUGGESTIONS
        self._problems = problems
        self._chains: dict[str, tuple[str, ...]] = {}
        self._access = {
            name: settings.access(
                shared | {key: value for key, value in entry.settings if key != "jump"},
                entry.address,
            )
            for name, entry in entries.items()
        }
        for name in entries:
            self._chain(name, [])

    def hops(self, names: Sequence[str]) -> tuple[tuple[str, Access], ...]:
        """Each hop's name and access, first hop first, a jump host's own jumps before it."""
        chain = dict.fromkeys(hop for name in names for hop in self._chains.get(name, ()))
        return tuple((name, self._access[name]) for name in chain)

    def check(self, entry: Entry) -> None:
        """Note the names in the entry's `jump` that no jump host has."""
        names = dict(entry.settings).get("jump", ())
        assert isinstance(names, tuple)
        for name in names:
            if name not in self._entries:
                cure = "list it under jump_hosts"
                if "," in name or " " in name:
                    cure = f"a chain is a list, [{', '.join(name.replace(',', ' ').split())}]"
                self._suggestions -= 1
                near = suggest(name, self._entries) if self._suggestions >= 0 else ""
                text = f"read {show(name)}: no such jump host{near}: {cure}"
                self._problems.add(entry.jump_line, f"{entry.where}.jump", text)

    def _chain(self, name: str, under_way: list[str]) -> tuple[str, ...]:
        if name in self._chains:
            return self._chains[name]
        if name not in self._entries:
            return ()
        entry = self._entries[name]
        if name in under_way:
            circle = " > ".join([*under_way[under_way.index(name) :], name])
            self._problems.stop(
                entry.line, entry.where, f"a circle of jump hosts: {circle}: leave one out"
            )
        if len(under_way) >= MAX_HOPS:
            self._problems.stop(
                entry.line, entry.where, f"more than {MAX_HOPS} jump hosts in a row"
            )
        self.check(entry)
        before = dict(entry.settings).get("jump", ())
        assert isinstance(before, tuple)
        hops = [hop for other in before for hop in self._chain(other, [*under_way, name])]
        self._chains[name] = tuple(dict.fromkeys([*hops, name]))
        return self._chains[name]
