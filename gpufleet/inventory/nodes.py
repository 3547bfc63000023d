"""Plain data that knows its lines: what a YAML file comes down to here. Nothing is read or typed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Scalar:
    text: str | None
    """None for an empty value or an unquoted `~`."""
    line: int
    plain: bool = True
    size: int = 1
    depth: int = 0


@dataclass(slots=True)
class Items:
    line: int
    values: list[Node] = field(default_factory=list)
    size: int = 1
    depth: int = 1


@dataclass(slots=True)
class Table:
    line: int
    entries: dict[str, tuple[int, Node]] = field(default_factory=dict)
    """Key → line of the key, value. In the order of the file; merged entries last."""
    origins: dict[str, str] = field(default_factory=dict)
    """Key → who says it, where that isn't the one whose table this is: `group pool`."""
    size: int = 1
    depth: int = 1


Node = Scalar | Items | Table


def plain(node: Node) -> object:
    """The node as str, None, list and dict."""
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Items):
        return [plain(value) for value in node.values]
    return {key: plain(value) for key, (_, value) in node.entries.items()}


def line_of(node: Node, line: int, path: tuple[str | int, ...]) -> int:
    """The line of the value at `path` below `node` (itself on `line`), as far as it exists."""
    for part in path:
        if isinstance(node, Table) and part in node.entries:
            line, node = node.entries[str(part)]
        elif isinstance(node, Items) and isinstance(part, int) and part < len(node.values):
            node = node.values[part]
            line = node.line
        else:
            break
    return line
