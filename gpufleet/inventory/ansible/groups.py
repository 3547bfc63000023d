"""Hosts, groups and variables of an Ansible inventory, and which variable wins. No file is read here.

Checked against `ansible-inventory --list` of ansible-core 2.19; the answers are frozen in the tests.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import field

from gpufleet.inventory.nodes import Node, Scalar
from gpufleet.inventory.problems import Problems, show
from gpufleet.inventory.ranges import MAX_NAMES
from gpufleet.records import dataclass

_RANGE = re.compile(r"\[([0-9A-Za-z]*):([0-9A-Za-z]*)(?::([0-9]+))?\]")
_PORT = re.compile(r"([^:\[\]]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")

Variables = dict[str, tuple[int, Node]]
"""Name → line and value."""


@dataclass
class Group:
    name: str
    line: int
    hosts: dict[str, int] = field(default_factory=dict)
    """Its own, not its children's; with the line that says so."""
    children: dict[str, int] = field(default_factory=dict)
    variables: Variables = field(default_factory=dict)


@dataclass
class Host:
    name: str
    line: int
    variables: Variables = field(default_factory=dict)


class Inventory:
    """What the two readers fill in."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.groups = {name: Group(name, 0) for name in ("all", "ungrouped")}
        self.hosts: dict[str, Host] = {}

    def group(self, name: str, line: int) -> Group:
        return self.groups.setdefault(name, Group(name, line))

    def add_hosts(self, text: str, line: int, group: str, variables: Variables) -> None:
        """`gpu[01:16]`, `name:2222`: the hosts of one entry, in this group."""
        port = _PORT.fullmatch(_RANGE.sub("r", text))
        if port:
            text = text[: text.rindex(":")].strip("[]" if text.startswith("[") else "")
            variables = {"ansible_port": (line, Scalar(port[2], line)), **variables}
        try:
            names = _expand(text)
        except ValueError as error:
            self.problems.add(line, group, f"read {show(text)}: {error}")
            return
        if len(self.hosts) + len(names) > MAX_NAMES:
            self.problems.stop(line, group, f"more than {MAX_NAMES:,} hosts: split the fleet")
        members = self.group(group, line).hosts
        for name in names:
            self.hosts.setdefault(name, Host(name, line)).variables.update(variables)
            members.setdefault(name, line)

    def depths(self) -> dict[str, int]:
        """Group → levels below `all`, on the longest way. A circle is a problem, shown as a chain."""
        found: dict[str, int] = dict.fromkeys(self.groups, 1)
        found["all"] = 0
        for name in self._downwards():
            for child in self.groups[name].children:
                found[child] = max(found[child], found[name] + 1)
        return found

    def winning(
        self, depths: dict[str, int], groups: Sequence[str]
    ) -> tuple[Variables, dict[str, str]]:
        """Of `groups`: the deeper one wins, then the higher ansible_group_priority, then the later
        name. And for each variable the group that won."""
        merged: Variables = {}
        said_by: dict[str, str] = {}
        for name in sorted(groups, key=lambda name: (depths[name], self._priority(name), name)):
            merged.update(self.groups[name].variables)
            said_by.update(dict.fromkeys(self.groups[name].variables, name))
        return merged, said_by

    def groups_of(self) -> dict[str, list[str]]:
        """Host → all its groups, parents included."""
        parents: dict[str, set[str]] = {name: set() for name in self.groups}
        for name in self._downwards():
            for child in self.groups[name].children:
                parents[child] |= {name, *parents[name]}
        found: dict[str, set[str]] = {name: {"all"} for name in self.hosts}
        for name, group in self.groups.items():
            for host in group.hosts:
                found[host] |= {name, *parents[name]}
        for names in found.values():
            if names - {"all", "ungrouped"}:
                names.discard("ungrouped")
            else:
                names.add("ungrouped")
        return {host: sorted(names) for host, names in found.items()}

    def _downwards(self) -> list[str]:
        """Every group after all its parents."""
        done: dict[str, None] = {}
        under_way: list[str] = []
        # A stack of its own: the depth of the file is not the depth of Python.
        stack: list[tuple[str, bool]] = [(name, False) for name in reversed(self.groups)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                under_way.pop()
                done[name] = None
            elif name in under_way:
                circle = " > ".join([*under_way[under_way.index(name) :], name])
                line = self.groups[name].line
                self.problems.stop(line, name, f"a circle of groups: {circle}: leave one out")
            elif name not in done:
                under_way.append(name)
                stack.append((name, True))
                stack.extend((child, False) for child in reversed(self.groups[name].children))
        return [*reversed(done)]

    def _priority(self, name: str) -> int:
        _, node = self.groups[name].variables.get("ansible_group_priority", (0, Scalar("1", 0)))
        text = node.text if isinstance(node, Scalar) else None
        return int(text) if text and re.fullmatch(r"-?[0-9]{1,9}", text) else 1


def _expand(text: str) -> list[str]:
    """`gpu[01:16]`, `rack[a:c]`, `gpu[0:14:2]`: both ends count, as in Ansible."""
    names = [""]
    done = 0
    for found in _RANGE.finditer(text):
        before = text[done : found.start()]
        values = _values(found[1], found[2], int(found[3] or 1), found[0])
        if len(names) * len(values) > MAX_NAMES:
            raise ValueError(
                f"a range of {len(names) * len(values):,} names, and {MAX_NAMES:,} is the most"
            )
        names = [name + before + value for name in names for value in values]
        done = found.end()
    rest = text[done:]
    if set("[]") & set("".join(names[:1]) + rest):
        raise ValueError("no range of Ansible's: gpu[01:16], gpu[0:14:2] or rack[a:c]")
    return [name + rest for name in names]


def _values(first: str, last: str, step: int, shown: str) -> Sequence[str]:
    letters = string.ascii_letters
    first = first or "0"
    if step == 0 or not last:
        raise ValueError(f"{show(shown)} has no end: gpu[01:16]")
    if first in letters and last in letters:
        start, end = letters.index(first), letters.index(last)
        if end < start:
            raise ValueError(f"{shown} names nothing: the earlier letter comes first")
        return letters[start : end + 1 : step]
    if not (first.isdigit() and last.isdigit()) or max(len(first), len(last)) > 18:
        raise ValueError(f"{shown} is no range: gpu[01:16], gpu[0:14:2] or rack[a:c]")
    width = len(first) if first.startswith("0") and len(first) > 1 else 0
    if width and width != len(last):
        raise ValueError(
            f"{shown} pads its two ends differently: [{int(first):0{len(last)}}:{last}]"
        )
    numbers = range(int(first), int(last) + 1, step)
    if not numbers:
        raise ValueError(f"{shown} names nothing: the smaller number comes first")
    if len(numbers) > MAX_NAMES:
        raise ValueError(f"a range of {len(numbers):,} names, and {MAX_NAMES:,} is the most")
    return [f"{number:0{width}}" for number in numbers]
