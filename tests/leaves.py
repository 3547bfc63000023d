"""A document with something else in one place: what somebody edited, or another program wrote."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]

ODD: tuple[Any, ...] = (
    10**400,
    -(10**400),
    2**64,
    -1,
    1e308,
    1.5,
    None,
    True,
    [],
    {},
    [1],
    {"a": 1},
    "",
    "CLEAN",
    "1" * 5000,
    "\x1b[2Jred\x07\n\n",
    "\ud800",
)


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Of all values that aren't lists or mappings, and of those that are."""
    if at:
        yield at
    items = enumerate(value) if isinstance(value, list) else ()
    for key, item in value.items() if isinstance(value, dict) else items:
        yield from places(item, (*at, key))


def with_odd(document: dict[str, Any]) -> Iterator[tuple[Place, Any, dict[str, Any]]]:
    """The document with each odd value in each place: where, what, and the whole."""
    for at in places(document):
        for odd in ODD:
            changed = copy.deepcopy(document)
            inner: Any = changed
            for key in at[:-1]:
                inner = inner[key]
            inner[at[-1]] = odd
            yield at, odd, changed
