"""A loaded fleet: the questions that may be asked about it. Reads no file (`loading.py` does)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpufleet.errors import EmptySelection, SelectionError
from gpufleet.inventory import ranges
from gpufleet.inventory.origins import Explained, Origins
from gpufleet.inventory.problems import show, suggest
from gpufleet.inventory.selection import Vocabulary, evaluate, words
from gpufleet.inventory.settings import ACCESS_FIELDS, override
from gpufleet.policy import Access, Hooks, NodeSpec, Policy
from gpufleet.records import dataclass


@dataclass(frozen=True)
class Applied:
    """All that hosts with the same settings share: everything but name and address."""

    access: Access
    policy: Policy
    hooks: Hooks
    jump_hosts: tuple[tuple[str, Access], ...]


class Fleet:
    """The nodes of one fleet.yaml. Immutable, safe to share between threads."""

    def __init__(
        self,
        path: str,
        hosts: Mapping[str, tuple[str, Applied]],
        groups: Mapping[str, frozenset[str]],
        jump_hosts: Iterable[str] = (),
        notes: Sequence[str] = (),
        origins: Origins | None = None,
    ) -> None:
        """`hosts`: name → address and what applies, in the order of the file."""
        self.path = path
        self.notes = tuple(notes)
        """What the file says and gpufleet leaves out, a line each."""
        self._origins = origins
        self._hosts = dict(hosts)
        self._groups = dict(groups)
        self._jump_hosts = tuple(jump_hosts)

    def names(self) -> tuple[str, ...]:
        """Every host, in the order of the file."""
        return tuple(self._hosts)

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Each group and its hosts (maybe none), naturally sorted."""
        return {name: _sorted(members) for name, members in self._groups.items()}

    def spec(self, name: str) -> NodeSpec:
        """Name, access and policy of one host, without the command line's settings.

        Raises SelectionError for an unknown one.
        """
        address, applied = self._host(name)
        return NodeSpec(
            name,
            dataclasses.replace(applied.access, address=address),
            applied.policy,
            applied.jump_hosts,
            applied.hooks,
        )

    def explain(self, name: str, overrides: Mapping[str, Any] | None = None) -> list[Explained]:
        """Each key of one host: its value and where that comes from. SelectionError: unknown host."""
        spec = self.spec(name)
        assert self._origins is not None
        return self._origins.explain(with_overrides(spec, overrides or {}), overrides or {})

    def resolve(
        self,
        selection: str,
        *,
        exclude: Sequence[str] = (),
        limit: str | None = None,
        special: Mapping[str, Sequence[str]] | None = None,
    ) -> tuple[str, ...]:
        """The hosts selected, each once, naturally sorted (gpu2 before gpu10).

        `exclude` are selections taken away, `limit` one to intersect with. `special` are words
        for `@word`, such as {"failed": [...]}; their hosts have to exist in the fleet, and there
        may be none. Raises SelectionError for unknown names and bad syntax, EmptySelection, which
        is one as well, for an empty result.
        """
        vocabulary = self._vocabulary(special or {})
        chosen = evaluate(selection, vocabulary)
        for excluded in exclude:
            chosen -= _option("--exclude", excluded, vocabulary)
        if limit is not None:
            chosen &= _option("--limit", limit, vocabulary)
        if not chosen:
            options = [*(f"--exclude {excluded}" for excluded in exclude)]
            options += [] if limit is None else [f"--limit {limit}"]
            after = f" with {' '.join(options)}" if options else ""
            raise EmptySelection(f"{show(selection)}{after} selects no hosts")
        return _sorted(chosen)

    def select(
        self,
        selection: str,
        *,
        exclude: Sequence[str] = (),
        limit: str | None = None,
        special: Mapping[str, Sequence[str]] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> list[NodeSpec]:
        """What `resolve` names, each with all that applies to it.

        `overrides` are the command line's settings, typed, by field of Policy or Access (see
        `parse_settings`): they win over all levels of the file; `protect` adds to them.
        """
        names = self.resolve(selection, exclude=exclude, limit=limit, special=special)
        specs = [self.spec(name) for name in names]
        return [with_overrides(spec, overrides) for spec in specs] if overrides else specs

    def mentions_all(self, selection: str) -> bool:
        """Whether `all` stands in the selection itself: without a terminal that needs --yes."""
        return any(word.removeprefix("@") == "all" for _, word in words(selection))

    def _host(self, name: str) -> tuple[str, Applied]:
        if name not in self._hosts:
            raise SelectionError(f"unknown host {show(name)}{suggest(name, self._hosts)}")
        return self._hosts[name]

    def _vocabulary(self, special: Mapping[str, Sequence[str]]) -> Vocabulary:
        for word, names in special.items():
            if gone := [name for name in names if name not in self._hosts]:
                raise SelectionError(f"@{word}: {ranges.fold(gone)} isn't in {self.path} any more")
        return Vocabulary(
            self._hosts,
            self._groups.get,
            self._groups,
            self._jump_hosts,
            {word: frozenset(names) for word, names in special.items()},
        )


def with_overrides(spec: NodeSpec, overrides: Mapping[str, Any]) -> NodeSpec:
    """`spec` with typed fields of Policy and Access on top. TypeError for a field of neither."""
    # Not jump: its hops are the file's to describe.
    access_fields = ACCESS_FIELDS - {"jump"}
    ours = {key: value for key, value in overrides.items() if key in access_fields}
    rest = {key: value for key, value in overrides.items() if key not in access_fields}
    return dataclasses.replace(
        spec,
        access=dataclasses.replace(spec.access, **ours),
        policy=override(spec.policy, rest),
    )


def _option(option: str, text: str, vocabulary: Vocabulary) -> frozenset[str]:
    try:
        return evaluate(text, vocabulary, may_be_empty=True)
    except SelectionError as error:
        raise SelectionError(f"{option}: {error}") from error


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=ranges.natural))
