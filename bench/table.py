"""A table as text, which is also Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join(["", f"## {title}", "", lines[0], rule, *lines[1:], ""])


def ratio(value: float, base: float) -> str:
    """How many times `base` it is."""
    return f"{value / base:.2f}" if base else "-"
