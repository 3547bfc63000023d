"""Every setting of one host with where it comes from, as text or JSON. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from gpufleet.masking import masked_command
from gpufleet.render.document import SCHEMA


class Row(Protocol):
    """One key; `inventory.origins.Explained` has this shape."""

    @property
    def key(self) -> str: ...
    @property
    def value(self) -> object: ...
    @property
    def origins(self) -> tuple[str, ...]: ...
    @property
    def lines(self) -> tuple[int, ...]: ...


def explain_text(host: str, path: str, rows: Sequence[Row]) -> str:
    """`gpus     4    group odd (fleet.yaml:12)`, a line per key."""
    cells = [("KEY", "VALUE", f"{host} HAS IT FROM")]
    for row in rows:
        said = [
            f"{origin} ({path}:{line})" if line else origin
            for origin, line in zip(row.origins, row.lines, strict=True)
        ]
        cells.append((row.key, _shown(row.value), " + ".join(said)))
    widths = [max(len(cell[i]) for cell in cells) for i in range(2)]
    return "".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}\n" for a, b, c in cells)


def explain_document(host: str, path: str, rows: Sequence[Row]) -> str:
    """`line` is null for what doesn't stand in the file."""
    settings = [
        {
            "key": row.key,
            "value": [*row.value] if isinstance(row.value, tuple) else row.value,
            "from": [
                {"level": origin, "line": line or None}
                for origin, line in zip(row.origins, row.lines, strict=True)
            ],
        }
        for row in rows
    ]
    document = {"schema": SCHEMA, "command": "hosts", "host": host, "file": path}
    return json.dumps({**document, "settings": settings}, indent=1) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return masked_command([", ".join(map(str, value))]) or "-"
    return masked_command([f"{value:g}" if isinstance(value, float) else str(value)]) or "-"
