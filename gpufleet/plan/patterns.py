"""The user's regular expressions, tried on what a node says, within a bound. Pure.

A pattern without a repeat costs about as many steps as the text has letters. One with a repeat may
cost their square (`.*a.*b`) or far more (`(a+)+$`), on a command line of up to 2 MB that anybody on
the node may write. So those are tried by the `regex` package, which gives up when it is told to; the
default patterns have no repeat, and never load it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Protocol

SEARCH_S = 2.0
"""CPU time for one pattern on one text. An honest pattern takes a thousandth of it."""

_REPEATS = frozenset("*+?{(")

_LONG = 4096
"""From so many letters on, other nodes' threads may run meanwhile; below it isn't worth the switch."""

_FUZZY = re.compile(r"(?<!\\)\{[0-9<=+,eids ]*[ides][0-9<=+,eids ]*\}")


class SlowPattern(Exception):  # what the pattern is, not what went wrong
    """The pattern took longer on this text than any honest one: whether it is found isn't known."""

    def __init__(self, pattern: str, text: str) -> None:
        self.pattern = pattern
        super().__init__(f"more than {SEARCH_S:g} s on {len(text):,} letters")


class Bounded(Protocol):
    """What of `regex`'s compiled pattern is used here; it raises TimeoutError."""

    def search(self, text: str, *, timeout: float, concurrent: bool) -> object: ...


@functools.lru_cache(maxsize=256)
def finder(pattern: str) -> Callable[[str], bool]:
    """Whether a text has the pattern somewhere; the finder raises `SlowPattern`.

    Raises `ValueError` for what isn't, in Python's own words, a regular expression.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not _REPEATS & set(pattern):
        return lambda text: compiled.search(text) is not None
    return functools.partial(_found, pattern, bounded(pattern))


@functools.lru_cache(maxsize=256)
def bounded(pattern: str) -> Bounded:
    """The same by `regex`. Raises `ValueError` where the two would not mean the same."""
    import regex  # type: ignore[import-untyped]  # noqa: PLC0415  # 25 ms that the defaults needn't pay

    if found := _FUZZY.search(pattern):
        raise ValueError(f"write \\{found[0]} for the brace itself")
    try:
        compiled: Bounded = regex.compile(pattern, regex.VERSION0)
    except (regex.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return compiled


def _found(pattern: str, compiled: Bounded, text: str) -> bool:
    try:
        match = compiled.search(text, timeout=SEARCH_S, concurrent=len(text) > _LONG)
    except TimeoutError as error:
        raise SlowPattern(pattern, text) from error
    return match is not None
