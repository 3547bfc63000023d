"""The four parts of fleet.yaml → entries with names, lines and typed settings.

Each entry is judged by itself; what entries mean to each other is judged in `groups.py`, `jumps.py`
and `loading.py`. No file is read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from gpufleet.inventory.names import check_address, check_name
from gpufleet.inventory.nodes import Items, Node, Scalar, Table, line_of, plain
from gpufleet.inventory.problems import Problems, show, suggest
from gpufleet.inventory.ranges import MAX_NAMES, expand, fold
from gpufleet.inventory.schema import (
    GroupSchema,
    HostSchema,
    JumpHostSchema,
    NodeSchema,
    Schema,
    Settings,
    read_entry,
)
from gpufleet.inventory.settings import Level, level
from gpufleet.records import dataclass


@dataclass(frozen=True)
class Entry:
    """One host, group or jump host as it stands in the file."""

    name: str
    line: int
    where: str
    """Path of keys, `hosts.gpu[02-16]`."""
    settings: Level = ()
    address: str = ""
    """Of hosts and jump hosts."""
    members: tuple[tuple[int, str], ...] = ()
    """Of groups: line and selection."""
    jump_line: int = 0
    """Where `jump` stands."""
    node: Node | None = field(default=None, compare=False, repr=False)
    """As it stands in the file, for the line of each key."""


SECTIONS = ("defaults", "jump_hosts", "hosts", "groups")


@dataclass(frozen=True)
class Document:
    """The entries of one file, in its order, by name."""

    defaults: Entry
    jump_hosts: dict[str, Entry]
    hosts: dict[str, Entry]
    groups: dict[str, Entry]


def read_document(tree: Node | None, problems: Problems, folder: str) -> Document:
    """Notes what is wrong in `problems`; raises InventoryError for a file without parts at all."""
    if tree is None or (isinstance(tree, Scalar) and tree.text is None):
        problems.stop(0, "", "no hosts: list them under hosts:")
    if not isinstance(tree, Table):
        read = show(plain(tree)) if isinstance(tree, Scalar) else "a list"
        problems.stop(tree.line, "", f"read {read}: the file starts with keys, such as hosts:")
    for key, (line, _) in tree.entries.items():
        if key not in SECTIONS:
            known = f"{', '.join(SECTIONS[:-1])} and {SECTIONS[-1]}"
            hint = suggest(key, SECTIONS) or f": the keys here are {known}"
            problems.add(line, "", f"read the unknown key {show(key)}{hint}")
    reader = _Reader(problems, folder)
    sections = {key: reader.table(tree, key) for key in SECTIONS}
    document = Document(
        reader.defaults(sections["defaults"]),
        dict(reader.jump_hosts(sections["jump_hosts"])),
        reader.hosts(sections["hosts"]),
        dict(reader.groups(sections["groups"])),
    )
    if not document.hosts and not problems.found:
        problems.stop(sections["hosts"].line, "", "no hosts: list them under hosts:")
    return document


class _Reader:
    def __init__(self, problems: Problems, folder: str) -> None:
        self._problems = problems
        self._folder = folder

    def table(self, tree: Table, key: str) -> Table:
        """A section; empty when it is missing, null, or no mapping, which is then noted."""
        line, node = tree.entries.get(key, (0, Scalar(None, 0)))
        if isinstance(node, Table):
            return node
        if not isinstance(node, Scalar) or node.text is not None:
            read = "a list" if isinstance(node, Items) else show(plain(node))
            what = "settings" if key == "defaults" else "names"
            self._problems.add(line, key, f"read {read}: a mapping of {what} goes here")
        return Table(line)

    def defaults(self, table: Table) -> Entry:
        settings = self._read(NodeSchema, table, table.line, "defaults")
        return Entry(
            "",
            table.line,
            "defaults",
            level(settings),
            jump_line=line_of(table, 0, ("jump",)),
            node=table,
        )

    def jump_hosts(self, table: Table) -> Iterator[tuple[str, Entry]]:
        for key, (line, node) in table.entries.items():
            where = f"jump_hosts.{key}"
            settings = self._read(JumpHostSchema, _short(node, "address"), line, where)
            if key == "none":
                text = 'read "none": `jump: none` means no jump host: choose another name'
                self._problems.add(line, where, text)
            if not self._named(key, line, where):
                continue
            address = settings.pop("address", None) or self._address(key, line, where)
            jump_line = line_of(node, line, ("jump",))
            yield key, Entry(key, line, where, level(settings), str(address), jump_line=jump_line)

    def groups(self, table: Table) -> Iterator[tuple[str, Entry]]:
        for key, (line, node) in table.entries.items():
            where = f"groups.{key}"
            whole = _short(node, "hosts")
            settings = self._read(GroupSchema, whole, line, where)
            if not self._named(key, line, where):
                continue
            texts = settings.pop("hosts", ())
            assert isinstance(texts, tuple)
            members = tuple(
                (line_of(whole, line, ("hosts", i)), text) for i, text in enumerate(texts)
            )
            jump_line = line_of(node, line, ("jump",))
            yield (
                key,
                Entry(key, line, where, level(settings), "", members, jump_line, node),
            )

    def hosts(self, table: Table) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for key, (line, node) in table.entries.items():
            where = f"hosts.{key}"
            names = self._expand(key, line, where)
            if len(found) + len(names) > MAX_NAMES:
                text = f"with {show(key)} more than {MAX_NAMES:,} hosts: split the fleet"
                self._problems.stop(line, where, text)
            self._again(found, names, line, where)
            settings = self._host(node, line, where)
            addresses = self._addresses(settings.pop("address", None), names, line, where, node)
            own = level(settings)
            jump_line = line_of(node, line, ("jump",)) if "jump" in settings else 0
            for name, address in zip(names, addresses, strict=True):
                entry = Entry(name, line, where, own, address, jump_line=jump_line, node=node)
                found.setdefault(name, entry)
        return found

    def _host(self, node: Node, line: int, where: str) -> Settings:
        """Short forms without pydantic: they are most of a large file."""
        if isinstance(node, Scalar):
            return {} if node.text is None else {"address": node.text}
        if isinstance(node, Table) and len(node.entries) == 1 and "address" in node.entries:
            _, address = node.entries["address"]
            if isinstance(address, Scalar) and address.text:
                return {"address": address.text}
        return self._read(HostSchema, node, line, where)

    def _read(self, model: type[Schema], node: Node, line: int, where: str) -> Settings:
        if isinstance(node, Scalar) and node.text is None:
            return {}
        return read_entry(model, node, line, where, self._problems, self._folder)

    def _expand(self, key: str, line: int, where: str) -> list[str]:
        """The names in a key that are good ones; the first bad one is noted."""
        try:
            names = expand(key)
            for name in names:
                check_name(name)
        except ValueError as error:
            self._problems.add(line, where, f"read {show(key)}: {error}")
            return []
        if len(set(names)) < len(names):
            self._problems.add(line, where, f"read {show(key)}: it has a name twice")
            return []
        return names

    def _named(self, key: str, line: int, where: str) -> bool:
        try:
            check_name(key)
        except ValueError as error:
            self._problems.add(line, where, f"read {show(key)}: {error}")
            return False
        return True

    def _again(self, found: dict[str, Entry], names: list[str], line: int, where: str) -> None:
        by_entry: dict[str, list[str]] = {}
        for name in names:
            if name in found:
                by_entry.setdefault(found[name].where, []).append(name)
        for first, repeated in by_entry.items():
            there = f"{first} (line {found[repeated[0]].line})"
            text = f"{fold(repeated)} stands in {there} already: one entry for each host"
            self._problems.add(line, where, text)

    def _addresses(
        self, given: object, names: list[str], line: int, where: str, node: Node
    ) -> list[str]:
        """One for each name, side by side; the names themselves where none is given."""
        if given is not None:
            line = line_of(node, line, ("address",))
            where = f"{where}.address"
        text = str(given or "")
        try:
            # [2001:db8::21]:2222 is no range, and its cure is the address's.
            is_bracketed = text.startswith("[") and ":" in text
            addresses = names if given is None else [text] if is_bracketed else expand(text)
        except ValueError as error:
            self._problems.add(line, where, f"read {show(text)}: {error}")
            return names
        if names and len(addresses) != len(names):
            counts = f"{_count(len(addresses), 'address')} for {_count(len(names), 'host')}"
            cure = "ranges side by side have equal lengths"
            self._problems.add(line, where, f"read {show(text)}: {counts}: {cure}")
            return names
        # The first bad one is enough; the names stand in, so that no other check trips over it.
        is_good = all(self._address(address, line, where) for address in addresses)
        return addresses if names and is_good else names

    def _address(self, text: str, line: int, where: str) -> str:
        try:
            return check_address(text)
        except ValueError as error:
            self._problems.add(line, where, f"read {show(text)}: {error}")
            return ""


def _short(node: Node, key: str) -> Node:
    """`name: value` as if it were `name: {key: value}`."""
    if isinstance(node, Table) or (isinstance(node, Scalar) and node.text is None):
        return node
    if isinstance(node, Items) and key == "address":
        return node
    return Table(node.line, {key: (node.line, node)})


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
