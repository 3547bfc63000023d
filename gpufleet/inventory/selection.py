"""What a selection means: `inference-pool,odd!gpu07`. Pure: words and known names in, names out.

The grammar is ClusterShell's: `,` adds, `!` takes away, `&` keeps common ones, `^` keeps those in
one only, strictly from left to right. Evaluated here on plain sets, because each word has to be
checked anyway: NodeSet takes any unknown name for a host, and `gpu-O2` would be left out unseen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpufleet.errors import SelectionError
from gpufleet.inventory.names import unseen
from gpufleet.inventory.problems import MAX_SUGGESTIONS, show, suggest
from gpufleet.inventory.ranges import expand, fold

MAX_WORK = 50_000_000
"""Hosts that all words of one file or command line may stand for, each counted as often as it is
named: seconds. Thousands of words for 100,000 hosts each would be minutes."""

_TOKEN = re.compile(r"\s*([,!&^])\s*|((?:\[[^\[\]]*\]|[^\s,!&^])+)|(\s+)")


class Vocabulary:
    """The names that selections may use, and what each stands for."""

    def __init__(
        self,
        hosts: Iterable[str],
        members: Callable[[str], frozenset[str] | None],
        groups: Iterable[str],
        jump_hosts: Iterable[str] = (),
        special: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """`members` gives a group's hosts, None for what is no group. `special` are words such as
        `failed`, only known with their @; they may stand for nothing."""
        self.hosts = frozenset(hosts)
        self._members = members
        self._groups = list(groups)
        self._jump_hosts = frozenset(jump_hosts)
        self._special = special or {}
        self._suggestions = MAX_SUGGESTIONS
        self._work = MAX_WORK

    def worked(self, count: int, text: str) -> None:
        """Raises SelectionError when naming the same hosts again and again has cost enough."""
        self._work -= count
        if self._work < 0:
            raise SelectionError(
                f"read {show(text)}: more than {MAX_WORK:,} hosts, repeats counted"
            )

    def word(self, word: str, *, may_be_empty: bool) -> frozenset[str]:
        """The hosts that one word stands for. Raises SelectionError for an unknown one."""
        prefix, bare = ("@", word[1:]) if word.startswith("@") else ("", word)
        if bare == "all":
            return self.hosts
        if prefix and bare in self._special:
            return self._special[bare]
        try:
            names = expand(bare)
        except ValueError as error:
            raise SelectionError(f"read {show(word)}: {error}") from error
        found: set[str] = set()
        unknown = []
        for name in names:
            if not prefix and name in self.hosts:
                found.add(name)
            elif (members := self._members(name)) is not None:
                found |= self._filled(name, members, may_be_empty=may_be_empty)
            else:
                unknown.append(name)
        if unknown:
            raise SelectionError(self._unknown(word, prefix, unknown))
        return frozenset(found)

    def _filled(self, group: str, members: frozenset[str], *, may_be_empty: bool) -> frozenset[str]:
        if not members and not may_be_empty:
            raise SelectionError(f"group {group} has no hosts")
        return members

    def _unknown(self, word: str, prefix: str, names: list[str]) -> str:
        first = names[0]
        if not first:
            return f"read {show(word)}: a group's name goes after @"
        if first in self._jump_hosts:
            return f"{first} is a jump host: never selected, never reset"
        if odd := unseen(first):
            return f"read {show(word)}: {odd} is in no name: retype it"
        if first in self._special:
            return f"read {show(word)}: write @{first}"
        if set(word) & set("*?"):
            return f"read {show(word)}: no wildcards here: gpu[01-16], a group, or all"
        if prefix and first in self.hosts:
            return f"{first} is a host, not a group: leave out the @"
        kind = "group" if prefix else "host or group"
        self._suggestions -= 1
        near = ""
        if self._suggestions >= 0:
            near = suggest(first, [*([] if prefix else sorted(self.hosts)), *self._groups])
        of = f" in {show(word)}" if fold(names) != word.removeprefix("@") else ""
        return f"unknown {kind} {show(fold(names))}{of}{near}"


def words(text: str) -> Iterator[tuple[str, str]]:
    """`a,b!c` → (",", "a"), (",", "b"), ("!", "c"). Raises SelectionError for bad syntax."""
    if not text.strip():
        raise SelectionError("the selection is empty: name hosts or groups, or all")
    operator, word = ",", ""
    for token in _TOKEN.finditer(text.strip()):
        if token[1]:
            if not word:
                raise SelectionError(_missing(text, token[1]))
            operator, word = token[1], ""
        elif token[2] and word:
            raise SelectionError(f"read {show(text)}: a comma is missing before {show(token[2])}")
        elif token[2]:
            word = token[2]
            yield operator, word
    if not word:
        raise SelectionError(_missing(text, ""))


def _missing(text: str, operator: str) -> str:
    where = f"before {operator}" if operator else "at the end"
    return f"read {show(text)}: a name is missing {where}"


def evaluate(text: str, vocabulary: Vocabulary, *, may_be_empty: bool = False) -> frozenset[str]:
    """The hosts that `text` selects. `may_be_empty` lets a union name groups without hosts.

    Raises SelectionError for unknown words and bad syntax; an empty result is for the caller.
    """
    result: frozenset[str] = frozenset()
    for operator, word in words(text):
        adds = operator == ","
        names = vocabulary.word(word, may_be_empty=may_be_empty or not adds)
        vocabulary.worked(len(names), text)
        if adds:
            result |= names
        elif operator == "!":
            result -= names
        elif operator == "&":
            result &= names
        else:
            result ^= names
    return result
