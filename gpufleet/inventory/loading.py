"""fleet.yaml → Fleet, or all that is wrong with it. Reads the one file and nothing else."""

from __future__ import annotations

from pathlib import Path

from gpufleet.inventory import settings
from gpufleet.inventory.ansible import read_tree
from gpufleet.inventory.fleet import Applied, Fleet
from gpufleet.inventory.groups import resolve_groups
from gpufleet.inventory.jumps import JumpHosts
from gpufleet.inventory.names import same_address
from gpufleet.inventory.origins import Origins
from gpufleet.inventory.problems import Problems
from gpufleet.inventory.ranges import fold
from gpufleet.inventory.sections import Document, Entry, read_document
from gpufleet.inventory.source import read_source

SHOWN_HOSTS = 200
"""Of those that two groups disagree about."""


def load_fleet(path: Path | str) -> Fleet:
    """The fleet in `path`. Raises InventoryError with every problem, each with its line."""
    path = Path(path)
    problems = Problems(str(path))
    tree, notes = read_tree(str(path), read_source(path), problems)
    document = read_document(tree, problems, str(path.absolute().parent))
    _check_names(document, problems)
    jump_hosts = JumpHosts(document.jump_hosts, document.defaults.settings, problems)
    jump_hosts.check(document.defaults)
    for entry in (*document.groups.values(), *document.hosts.values()):
        if entry.settings:
            jump_hosts.check(entry)
    groups = resolve_groups(document.groups, document.hosts, document.jump_hosts, problems)
    applied = _apply(document, groups, jump_hosts, problems)
    _check_addresses(document.hosts, applied, problems)
    problems.check()
    hosts = {name: (entry.address, applied[name]) for name, entry in document.hosts.items()}
    return Fleet(str(path), hosts, groups, document.jump_hosts, notes, Origins(document, groups))


def _check_names(document: Document, problems: Problems) -> None:
    """One name, one meaning: a selection must not have to guess."""
    taken = dict(document.hosts)
    for kind, entries in (("group", document.groups), ("jump host", document.jump_hosts)):
        for name, entry in entries.items():
            if name in taken:
                other = taken[name]
                text = f"{name} is {other.where} too (line {other.line}): rename the {kind}"
                problems.add(entry.line, entry.where, text)
        taken = {**entries, **taken}


def _apply(
    document: Document,
    groups: dict[str, frozenset[str]],
    jump_hosts: JumpHosts,
    problems: Problems,
) -> dict[str, Applied]:
    """Host → what applies to it; worked out once for all hosts with the same levels."""
    groups_of: dict[str, list[str]] = {}
    for name, entry in document.groups.items():
        if entry.settings:
            for host in groups[name]:
                groups_of.setdefault(host, []).append(name)
    combinations: dict[tuple[settings.Level, tuple[str, ...]], list[str]] = {}
    for host, entry in document.hosts.items():
        combinations.setdefault((entry.settings, tuple(groups_of.get(host, ()))), []).append(host)
    applied: dict[str, Applied] = {}
    conflicts: dict[settings.Conflict, list[str]] = {}
    for (own, names), hosts in combinations.items():
        levels = [(name, document.groups[name].settings) for name in names]
        merged, disagreements = settings.merge(document.defaults.settings, levels, own)
        for conflict in disagreements:
            conflicts.setdefault(conflict, []).extend(hosts)
        hops = jump_hosts.hops(merged.get("jump", ()))
        if "jump" in merged:  # said; where it isn't, OpenSSH's files may have a say
            merged["jump"] = tuple(name for name, _ in hops)
        shared = Applied(
            settings.access(merged, ""), settings.policy(merged), settings.hooks(merged), hops
        )
        applied.update(dict.fromkeys(hosts, shared))
    for conflict, hosts in conflicts.items():
        _note(conflict, hosts, document.groups, problems)
    return applied


def _note(
    conflict: settings.Conflict, hosts: list[str], groups: dict[str, Entry], problems: Problems
) -> None:
    key = next(
        (key for key, fld in settings.FIELDS.items() if fld == conflict.field), conflict.field
    )
    first, second = groups[conflict.first], groups[conflict.second]
    text = (
        f"{_some(hosts)} is in {first.name} (line {first.line}) too, which gives another {key}: "
        f"set {key} at the host, or keep it to one group"
    )
    problems.add(second.line, f"{second.where}.{key}", text)


def _some(hosts: list[str]) -> str:
    """Folding 20,000 names takes a quarter of a second, and nobody reads them for each conflict."""
    if len(hosts) <= SHOWN_HOSTS:
        return fold(hosts)
    return f"{fold(hosts[:SHOWN_HOSTS])} and {len(hosts) - SHOWN_HOSTS:,} more"


def _check_addresses(
    hosts: dict[str, Entry], applied: dict[str, Applied], problems: Problems
) -> None:
    """Two names for one machine would have it reset twice at once.

    Behind different jump hosts one private address may well be two machines.
    """
    seen: dict[tuple[str, int, tuple[str, ...]], Entry] = {}
    for name, entry in hosts.items():
        access = applied[name].access
        key = (same_address(entry.address), access.port, access.jump)
        first = seen.setdefault(key, entry)
        if first is not entry:
            there = f"{first.name} (line {first.line})"
            text = f"{name} has the address and port of {there}: one name for each machine"
            problems.add(entry.line, entry.where, text)
