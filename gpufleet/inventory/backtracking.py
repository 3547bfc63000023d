"""Does a regular expression explode? Tried on texts made to bring it out, by counting. Pure.

What explodes has a repeat whose body can take the same text in two ways, as in `(a+)+$` or
`(x|[a-z]*)*Z`: n rounds then have 2^n ways, and where what comes behind doesn't fit, all are tried.
So for each repeat: a text that goes round it many times and then doesn't fit, walked as Python's `re`
walks it, step by step. An honest pattern is done in some hundred steps, an exploding one never.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

try:
    from re import _constants, _parser  # type: ignore[attr-defined]  # Python 3.11 and later
except ImportError:
    import sre_constants as _constants
    import sre_parse as _parser

MAX_STEPS = 250_000
"""For one text of some hundred letters: the cube of its length fits, 2^32 doesn't."""

_TRIES = 24
"""Texts for each repeat: which letters two ways have in common is found by drawing."""

_ROUNDS = 32
_MANY = 10
"""A repeat that is bounded, but by more than this, explodes as well."""

_LETTERS = "a/ 0_-.:Zz"
_NOWHERE = "\ue000"
"""A letter for private use: no pattern that anybody writes takes it, but for `.` and [^…]."""

_REPEATS = {
    getattr(_constants, name)
    for name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
    if hasattr(_constants, name)
}
_CATEGORIES: dict[Code, Callable[[str], bool]] = {
    _constants.CATEGORY_DIGIT: str.isdigit,
    _constants.CATEGORY_SPACE: str.isspace,
    _constants.CATEGORY_WORD: lambda c: c.isalnum() or c == "_",
    _constants.CATEGORY_NOT_DIGIT: lambda c: not c.isdigit(),
    _constants.CATEGORY_NOT_SPACE: lambda c: not c.isspace(),
    _constants.CATEGORY_NOT_WORD: lambda c: not (c.isalnum() or c == "_"),
}

_POSSESSIVE = getattr(_constants, "POSSESSIVE_REPEAT", None)
_ATOMIC = getattr(_constants, "ATOMIC_GROUP", None)
_SINGLE = {_constants.ANY, _constants.NOT_LITERAL, _constants.IN}
_LOOKS = {_constants.ASSERT, _constants.ASSERT_NOT}
_ENDS = {_constants.AT_END, _constants.AT_END_STRING}

Code = Any
"""An opcode of `re`'s parser, which has no types."""
Argument = Any
"""What the parser has for it: a letter, a list, a tuple, by the opcode."""
Tree = Sequence[tuple[Code, Argument]]


def explodes(pattern: str) -> bool:
    """Whether one of the texts made for it took more than `MAX_STEPS`. `pattern` compiles."""
    tree = _parser.parse(pattern)
    fold = bool(tree.state.flags & re.IGNORECASE) or "(?i" in pattern
    targets = [body for body in _repeated(tree) if _has_ways(body)]
    letters = "".join(dict.fromkeys([*_named(tree), *_LETTERS]))
    for target in targets:
        for number in range(_TRIES):
            drawn = _Draw(random.Random(number), letters, target)  # noqa: S311  # no secret
            walk = _Walk(drawn.whole(tree), fold)
            try:
                next(walk.all_of(tree, 0, 0), None)
            except _TooMany:
                return True
            except RecursionError:  # a long round: shorter ones are drawn as well
                continue
    return False


def _parts(op: Code, value: Argument) -> list[Tree]:
    """The subpatterns of one element."""
    if op in _REPEATS:
        return [value[2]]
    if op is _constants.BRANCH:
        return list(value[1])
    if op is _constants.SUBPATTERN:
        return [value[-1]]
    if op in _LOOKS:
        return [value[1]]
    if op is _constants.GROUPREF_EXISTS:
        return [part for part in value[1:] if part is not None]
    if _ATOMIC is not None and op is _ATOMIC:
        return [value]
    return []


def _repeated(tree: Tree) -> Iterator[Tree]:
    """Bodies of all repeats that may go round often."""
    for op, value in tree:
        if op in _REPEATS and value[1] > _MANY:
            yield value[2]
        for part in _parts(op, value):
            yield from _repeated(part)


def _has_ways(body: Tree) -> bool:
    """A body of single letters has one way."""
    return any(_parts(op, value) for op, value in body)


def _named(tree: Tree) -> Iterator[str]:
    """Every letter that stands in the pattern, and the ends of its ranges."""
    for op, value in tree:
        if op in {_constants.LITERAL, _constants.NOT_LITERAL}:
            yield chr(value)
        elif op is _constants.RANGE:
            yield from map(chr, value)
        elif op is _constants.IN:
            yield from _named(value)
        for part in _parts(op, value):
            yield from _named(part)


class _Complete(Exception):
    """The text is as long as it has to be."""


class _Draw:
    """One text: what stands before the target, the same round of it again and again, and a letter
    that fits nowhere."""

    def __init__(self, drawn: random.Random, letters: str, target: Tree) -> None:
        self._drawn = drawn
        self._letters = letters
        self._target = target
        self._out: list[str] = []

    def whole(self, tree: Tree) -> str:
        with contextlib.suppress(_Complete):
            self._all(tree)
        return "".join(self._out)

    def _all(self, tree: Tree) -> None:
        for op, value in tree:
            self._one(op, value)

    def _one(self, op: Code, value: Argument) -> None:
        if op is _constants.LITERAL:
            self._out.append(chr(value))
        elif op in _SINGLE:
            fitting = [letter for letter in self._letters if _takes(op, value, letter)]
            self._out.extend(self._drawn.choice(fitting) if fitting else "")
        elif op is _constants.BRANCH:
            ways = [way for way in value[1] if self._leads_to(way)]
            self._all(self._drawn.choice(ways or value[1]))
        elif op in _REPEATS:
            low, high, body = value
            if body is self._target:
                start = len(self._out)
                self._all(body)
                self._out += self._out[start:] * (min(_ROUNDS, high) - 1) + [_NOWHERE]
                raise _Complete
            rounds = min(max(low, self._drawn.randint(0, 2)), high, 3)
            for _ in range(max(1, rounds) if self._leads_to(body) else rounds):
                self._all(body)
        elif op not in _LOOKS or self._leads_to(value[1]):
            for part in _parts(op, value)[:1]:
                self._all(part)

    def _leads_to(self, tree: Tree) -> bool:
        return any(body is self._target for body in _repeated(tree))


class _TooMany(Exception):
    """More steps than an honest pattern takes."""


class _Walk:
    """`re`'s own way through a text: each choice in its order, the next one when the rest fails."""

    def __init__(self, text: str, fold: bool) -> None:
        self._text = text
        self._fold = fold
        self._steps = 0

    def all_of(self, tree: Tree, number: int, at: int) -> Iterator[int]:
        """Where the elements of `tree` from `number` on may end that begin at `at`."""
        if number == len(tree):
            yield at
            return
        for end in self._one(*tree[number], at):
            yield from self.all_of(tree, number + 1, end)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _TooMany

    def _one(self, op: Code, value: Argument, at: int) -> Iterator[int]:
        self._step()
        if op in _SINGLE or op is _constants.LITERAL:
            if self._fits(op, value, at):
                yield at + 1
        elif op in _REPEATS:
            yield from self._repeat(op, value, at)
        elif op is _constants.AT:
            if value not in _ENDS or at == len(self._text):
                yield at
        elif op in _LOOKS:
            behind = value[0] < 0
            found = behind or next(self.all_of(value[1], 0, at), None) is not None
            if behind or found is (op is _constants.ASSERT):
                yield at
        elif parts := _parts(op, value):
            ends = (end for part in parts for end in self.all_of(part, 0, at))
            yield from itertools.islice(ends, 1) if op is _ATOMIC else ends
        else:  # a group named again: as if it were empty
            yield at

    def _repeat(self, op: Code, value: Argument, at: int) -> Iterator[int]:
        low, high, body = value
        lazy = op is _constants.MIN_REPEAT
        if len(body) == 1 and (body[0][0] in _SINGLE or body[0][0] is _constants.LITERAL):
            last = at
            while last - at < high and self._fits(body[0][0], body[0][1], last):
                last += 1
            ends = iter(range(at + low, last + 1) if lazy else range(last, at + low - 1, -1))
            ends = self._stepping(ends)
        else:
            ends = self._rounds(low, high, body, lazy, 0, at)
        yield from itertools.islice(ends, 1) if op is _POSSESSIVE else ends

    def _stepping(self, ends: Iterator[int]) -> Iterator[int]:
        for end in ends:
            self._step()
            yield end

    def _rounds(
        self, low: int, high: int, body: Tree, lazy: bool, done: int, at: int
    ) -> Iterator[int]:
        if lazy and done >= low:
            yield at
        if done < high:
            for end in self.all_of(body, 0, at):
                if end > at or done < low:
                    yield from self._rounds(low, high, body, lazy, done + 1, end)
        if not lazy and done >= low:
            yield at

    def _fits(self, op: Code, value: Argument, at: int) -> bool:
        if at >= len(self._text):
            return False
        letter = self._text[at]
        forms = {letter, letter.lower(), letter.upper()} if self._fold else {letter}
        return any(_takes(op, value, form) for form in forms)


def _takes(op: Code, value: Argument, letter: str) -> bool:
    if op is _constants.LITERAL:
        return ord(letter) == value  # type: ignore[no-any-return]
    if op is _constants.NOT_LITERAL:
        return ord(letter) != value  # type: ignore[no-any-return]
    if op is _constants.ANY:
        return letter != "\n"
    negated = value[0][0] is _constants.NEGATE
    hit = any(_item(kind, what, letter) for kind, what in value[negated:])
    return hit is not negated


def _item(kind: Code, what: Argument, letter: str) -> bool:
    if kind is _constants.LITERAL:
        return ord(letter) == what  # type: ignore[no-any-return]
    if kind is _constants.RANGE:
        return what[0] <= ord(letter) <= what[1]  # type: ignore[no-any-return]
    return kind is _constants.CATEGORY and bool(_CATEGORIES[what](letter))
