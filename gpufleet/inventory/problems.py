"""What is wrong with fleet.yaml, as lines for a person. Nothing is read or decided here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import field
from typing import NoReturn

from gpufleet.errors import InventoryError
from gpufleet.records import dataclass

PATH_CHARACTERS = 100
MAX_SUGGESTIONS = 20
"""Near matches looked for in one file or command line: 50 ms each with 5,000 names."""

SHOWN_PROBLEMS = 100
"""More lines than anybody reads: the first ones, and how many there are besides."""

MAX_FOUND = 1_000
"""A file with more mistakes has one that is made on every line, and reading on costs seconds."""

SHOWN_CHARACTERS = 60
"""Longer values are cut in messages: one problem is one line on a terminal."""

_ALIKE = str.maketrans("ol", "01")
_MARKS = re.compile(r"[-_. ]")
_PADDING = re.compile(r"(?<![0-9])0+(?=[0-9])")
_NUMBERS = re.compile(r"[0-9]+")


@dataclass
class Problems:
    """Collects every problem of one file, so that one run of an editor can cure them all."""

    path: str
    found: set[tuple[int, str]] = field(default_factory=set)
    """Line number (0 for the file as a whole) and text. A set, since an anchor's problem comes
    back with each of its aliases."""

    def add(self, line: int, where: str, text: str) -> None:
        """`where` is the path of keys, `hosts.gpu01.port`, or empty for the file as a whole.

        Raises InventoryError when there are too many to read on.
        """
        self.found.add((line, f"{_cut(where, PATH_CHARACTERS)}: {text}" if where else text))
        if len(self.found) > MAX_FOUND:
            raise self.error()

    def stop(self, line: int, where: str, text: str) -> NoReturn:
        """Add one that makes reading on pointless, and raise all."""
        self.add(line, where, text)
        raise self.error()

    def check(self) -> None:
        """Raise InventoryError when there are any."""
        if self.found:
            raise self.error()

    def error(self) -> InventoryError:
        lines = [
            _visible(f"{self.path}:{line}: {text}" if line else f"{self.path}: {text}")
            for line, text in sorted(self.found)
        ]
        if (more := len(lines) - SHOWN_PROBLEMS) > 1:
            at_least = "at least " if len(lines) > MAX_FOUND else ""
            lines[SHOWN_PROBLEMS:] = [_visible(f"{self.path}: {at_least}{more} more problems")]
        return InventoryError(lines)


def show(value: object) -> str:
    """A value as read, quoted; characters that nobody can see are named: `"gpu<U+00A0>01"`."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f'"{_visible(_cut(value, SHOWN_CHARACTERS))}"'
    return "a list" if isinstance(value, list | tuple) else "a mapping"


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"


def suggest(word: str, known: Iterable[str]) -> str:
    """` (did you mean gpu-02?)`, or nothing. Looks first for what the eye confuses.

    Another number isn't suggested: gpu19 is no likelier than gpu91 when gpu99 doesn't exist.
    """
    if len(word) > SHOWN_CHARACTERS:
        return ""
    letters = _NUMBERS.sub("", word)
    names = list(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.72)
    near = [name for name in names if _plain(name) == _plain(word)]
    near += [name for name in close if _NUMBERS.sub("", name) != letters]
    return f" (did you mean {near[0]}?)" if near else ""


def _plain(word: str) -> str:
    """The same for names that differ only in case, padding, O for 0, l for 1, or marks."""
    text = _MARKS.sub("", word.lower()).translate(_ALIKE)
    return _PADDING.sub("", text)
