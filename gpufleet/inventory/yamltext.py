"""YAML text → plain data that knows its lines. Scalars stay text: nothing is typed here.

Built from the parser's events instead of a loader: no tag is ever looked up, so nothing can be
constructed or executed, and a nine-fold alias of a nine-fold alias is counted before it costs
anything (yaml/pyyaml#235, #897). The parser is libyaml's where PyYAML has it: 0.07 s for 5,000
hosts against 1.7 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import yaml

from gpufleet.inventory.nodes import Items, Node, Scalar, Table, plain
from gpufleet.inventory.problems import Problems, show
from gpufleet.inventory.yamlerrors import explain, refuse_characters

MAX_DEPTH = 50
"""Levels of nesting. fleet.yaml needs four; bounded because plain data is walked recursively."""

MAX_VALUES = 1_000_000
"""Scalars after expanding aliases and merge keys. 100,000 hosts with four settings each fit."""

LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str, problems: Problems) -> Node | None:
    """The document in `text`, None when there is none. Raises InventoryError when it isn't YAML."""
    refuse_characters(text, problems)
    builder = _Builder(problems)
    try:
        for event in yaml.parse(text, Loader=LOADER):
            builder.take(event)
    except yaml.YAMLError as error:
        problems.stop(*explain(error, text))
    if builder.refused:
        problems.check()
    return builder.root


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end hasn't come yet."""

    node: Items | Table
    anchor: str | None
    key: Scalar | None = None
    merges: list[tuple[int, Node]] = field(default_factory=list)


class _Builder:
    def __init__(self, problems: Problems) -> None:
        self.root: Node | None = None
        self.refused = False
        """Something stands in the tree that can't be judged any further, such as a tag."""
        self._problems = problems
        self._open: list[_Open] = []
        self._anchors: dict[str, Node | None] = {}
        """None while the anchored value is still open: an alias to it would contain itself."""
        self._values = 0
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                line = _line(event)
                self._problems.stop(line, "", "a second document (---): keep one per file")

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        line = _line(event)
        is_plain = not event.style
        text = None if is_plain and event.value in {"", "~"} else event.value
        node = Scalar(text, line, is_plain)
        self._values += 1
        if event.tag is not None or event.anchor is not None:
            self._prepare(event, event.tag, line)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._attach(node)

    def _start(self, event: yaml.CollectionStartEvent) -> None:
        line = _line(event)
        is_table = isinstance(event, yaml.MappingStartEvent)
        self._count(1, line)
        self._prepare(event, event.tag, line)
        if len(self._open) >= MAX_DEPTH:
            self._problems.stop(line, "", f"nested deeper than {MAX_DEPTH} levels")
        self._open.append(_Open(Table(line) if is_table else Items(line), event.anchor))

    def _end(self) -> None:
        done = self._open.pop()
        if isinstance(done.node, Table):
            self._merge(done.node, done.merges)
            children = [value for _, value in done.node.entries.values()]
        else:
            children = done.node.values
        done.node.size = 1 + sum([child.size for child in children])
        done.node.depth = 1 + max([child.depth for child in children], default=0)
        if done.anchor is not None:
            self._anchors[done.anchor] = done.node
        self._attach(done.node)

    def _alias(self, event: yaml.AliasEvent) -> None:
        line = _line(event)
        name = event.anchor
        if name not in self._anchors:
            cure = f'no anchor &{name} before it: text that starts with * wants quotes, "*{name}"'
            self._problems.stop(line, self._where(), f'read "*{name}": {cure}')
        node = self._anchors[name]
        if node is None:
            self._problems.stop(line, self._where(), f'read "*{name}": it contains itself')
        if len(self._open) + node.depth > MAX_DEPTH:
            self._problems.stop(line, "", f"nested deeper than {MAX_DEPTH} levels")
        self._count(node.size, line)
        self._attach(node)

    def _prepare(self, event: yaml.NodeEvent, tag: str | None, line: int) -> None:
        """What holds for every value: no tag, and a new anchor."""
        if tag is not None:
            self.refused = True
            tag = tag.replace("tag:yaml.org,2002:", "!!")
            cure = "tags are not used here; text that starts with ! wants quotes"
            self._problems.add(line, self._where(), f"read the tag {show(tag)}: {cure}")
        if event.anchor is not None:
            if event.anchor in self._anchors:
                cure = "another name for this one"
                self._problems.stop(
                    line, self._where(), f"the anchor &{event.anchor} again: {cure}"
                )
            self._anchors[event.anchor] = None

    def _count(self, size: int, line: int) -> None:
        self._values += size
        if self._values > MAX_VALUES:
            text = f"more than {MAX_VALUES:,} values, aliases expanded: use ranges and groups"
            self._problems.stop(line, "", text)

    def _attach(self, node: Node) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent.node, Items):
            parent.node.values.append(node)
        elif parent.key is None:
            parent.key = self._key(node)
        elif parent.key.text == "<<" and parent.key.plain:
            parent.merges.append((parent.key.line, node))
            parent.key = None
        else:
            self._put(parent.node, parent.key, node)
            parent.key = None

    def _key(self, node: Node) -> Scalar:
        if isinstance(node, Scalar) and node.text is not None:
            return node
        self.refused = True
        read = show(plain(node)) if isinstance(node, Scalar) else "a list or mapping"
        self._problems.add(node.line, self._where(), f"read {read} as a key: a key is text")
        return Scalar(f"?{node.line}:{id(node)}", node.line)

    def _put(self, table: Table, key: Scalar, node: Node) -> None:
        assert key.text is not None
        # As a program writes "nothing"; as a name, in a key or a list, it stays a word.
        if isinstance(node, Scalar) and node.plain and node.text in {"null", "Null", "NULL"}:
            node = Scalar(None, node.line)
        first = table.entries.setdefault(key.text, (key.line, node))
        if first[1] is not node or first[0] != key.line:
            text = f"read {show(key.text)} twice, first on line {first[0]}: keep one"
            self._problems.add(key.line, self._where(key.text), text)

    def _merge(self, table: Table, merges: list[tuple[int, Node]]) -> None:
        """`<<: *common`. Own keys win, then the earlier of a list, as YAML's merge type says."""
        if len(merges) > 1:
            text = f'read "<<" twice, first on line {merges[0][0]}: use one list, <<: [*a, *b]'
            self._problems.add(merges[1][0], self._where("<<"), text)
        for line, merged in merges:
            for source in merged.values if isinstance(merged, Items) else [merged]:
                if not isinstance(source, Table):
                    text = f"read {show(plain(source))}: << takes an alias of a mapping, *name"
                    self._problems.add(line, self._where("<<"), text)
                    continue
                self._count(source.size, line)
                for key, entry in source.entries.items():
                    table.entries.setdefault(key, entry)

    def _where(self, last: str = "") -> str:
        keys = [frame.key.text for frame in self._open if frame.key is not None]
        if last and (not keys or keys[-1] != last):
            keys.append(last)
        return ".".join(key for key in keys if key)


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1
