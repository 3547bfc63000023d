"""Settings of one node out of its levels: defaults < group < host < command line.

Pure. Knows which field of `policy.py` a key of the file fills; knows no YAML and no types.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from gpufleet.policy import Access, Hooks, Policy
from gpufleet.records import dataclass

FIELDS = {
    "connect_timeout": "connect_timeout_s",
    "timeout": "timeout_s",
    "grace": "grace_s",
    "settle": "settle_s",
    "tolerance": "tolerance_mib",
    "reboot_timeout": "reboot_timeout_s",
    "guard_timeout": "guard_timeout_s",
    "before_timeout": "before_timeout_s",
    "after_timeout": "after_timeout_s",
}
"""Keys of the file whose field carries a unit in its name; all others are called the same."""

ACCESS_FIELDS = frozenset(field.name for field in dataclasses.fields(Access)) - {"address", "said"}
POLICY_FIELDS = frozenset(field.name for field in dataclasses.fields(Policy))
HOOK_FIELDS = frozenset(field.name for field in dataclasses.fields(Hooks))

Level = tuple[tuple[str, object], ...]
"""Settings of one level, by field, sorted: hashable, so that equal ones are merged once."""


@dataclass(frozen=True)
class Conflict:
    """Two groups give a field different values, and the host doesn't give its own."""

    field: str
    first: str
    second: str


def level(settings: Mapping[str, object]) -> Level:
    return tuple(sorted((FIELDS.get(key, key), value) for key, value in settings.items()))


def merge(
    defaults: Level, groups: Iterable[tuple[str, Level]], host: Level
) -> tuple[dict[str, Any], list[Conflict]]:
    """All levels in one, by field. `protect` adds up, all else replaces."""
    merged = dict(defaults)
    own = dict(host)
    protect = [*_entries(defaults)]
    said_by: dict[str, str] = {}
    conflicts = []
    for group, settings in groups:
        protect += _entries(settings)
        for field, value in settings:
            if field == "protect" or field in own:
                continue
            first = said_by.setdefault(field, group)
            if first != group and merged[field] != value:
                conflicts.append(Conflict(field, first, group))
            merged[field] = value
    merged |= own
    protect += _entries(host)
    if protect:
        merged["protect"] = tuple(dict.fromkeys(protect))
    return merged, conflicts


def _entries(settings: Level) -> tuple[str, ...]:
    found = dict(settings).get("protect", ())
    assert isinstance(found, tuple)
    return found


def access(merged: Mapping[str, Any], address: str) -> Access:
    given = merged.keys() & ACCESS_FIELDS
    return Access(address, **{key: merged[key] for key in given}, said=frozenset(given))


def policy(merged: Mapping[str, Any]) -> Policy:
    return _policy(level({key: merged[key] for key in merged.keys() & POLICY_FIELDS}))


@functools.lru_cache(maxsize=1024)  # hosts differ in address and port more often than in this
def _policy(fields: Level) -> Policy:
    return override(Policy(), dict(fields))


def hooks(merged: Mapping[str, Any]) -> Hooks:
    return Hooks(**{key: merged[key] for key in merged.keys() & HOOK_FIELDS})


def override(base: Policy, fields: Mapping[str, Any]) -> Policy:
    """`base` with `fields` on top; `protect` adds up. While something is dying a node is given at
    least as long as it has otherwise."""
    given = dict(fields)
    if "protect" in given:
        given["protect"] = tuple(dict.fromkeys([*base.protect, *given["protect"]]))
    if "timeout_s" in given:
        given.setdefault("dying_timeout_s", max(base.dying_timeout_s, given["timeout_s"]))
    return dataclasses.replace(base, **given)
