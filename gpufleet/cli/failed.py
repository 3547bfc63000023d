"""`@failed` and `@failed:RUN` in a selection: which nodes they stand for, told before they are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpufleet.cli.streams import note
from gpufleet.errors import SelectionError
from gpufleet.masking import printable

if TYPE_CHECKING:
    from gpufleet.cli.showing import View
    from gpufleet.history import Failed
    from gpufleet.inventory import Fleet

WORD = "@failed"


def failed_words(fleet: Fleet, texts: Iterable[str], *, quiet: bool) -> dict[str, tuple[str, ...]]:
    """Word (without its @) → its hosts that the inventory still has, for `Fleet.select`.

    Which run that was is told on stderr, unless `quiet`; what is gone from the inventory always is.
    Raises SelectionError when nothing but such nodes is left.
    """
    from gpufleet.history import failed  # noqa: PLC0415  # only who asks for it pays for SQLite
    from gpufleet.inventory import fold, words  # noqa: PLC0415

    asked = {word for text in texts for _, word in words(text) if _is_ours(word)}
    found: dict[str, tuple[str, ...]] = {}
    for word in sorted(asked):
        what = failed(word.partition(":")[2] if ":" in word else None)
        if not quiet:
            for newer in what.running:
                note(f"{word}: run {newer.run_id} of {newer.person} still goes on, not looked at")
            note(_told(word, what, fold(what.hosts) if what.hosts else ""))
        problems = dict(_not_the_same(what, fleet))
        there = tuple(host for host in what.hosts if host not in problems)
        for problem in problems.values():
            if not there:
                raise SelectionError(f"{word}: {problem}")
            note(printable(f"{word}: left out: {problem}"))
        found[word.removeprefix("@")] = there
    return found


def _is_ours(word: str) -> bool:
    return word == WORD or word.startswith(f"{WORD}:")


def _not_the_same(what: Failed, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Hosts that the inventory has no more, or under whose name it has another machine."""
    known = set(fleet.names())
    for host in what.hosts:
        then = what.addresses[host]
        if host not in known:
            yield host, f"{host} failed and isn't in {fleet.path} any more"
        elif (now := fleet.spec(host).access.address) != then:
            yield host, f"{host} failed as {then}, and is {now} in {fleet.path}: select it by name"


def _told(word: str, what: Failed, hosts: str) -> str:
    run = what.run
    when = run.started[:19].replace("T", " ")
    ended = "" if run.state == "finished" else ", which never ended"
    shard = run.header.get("shard")
    part = f", shard {shard} only" if shard else ""
    which = f"run {run.run_id} ({when} UTC, by {run.person}@{run.control_host}{part}{ended})"
    return printable(f"{word}: {hosts or 'no node failed'} in {which}")


def nothing_to_do(command: str, selection: str, view: View) -> int:
    """The result when `@failed` stands for no node, or a shard's part is empty: exit 0, and for
    programs a document without nodes, so that no task of many fails for having had no work."""
    if view.json or view.jsonl:
        from gpufleet.cli.showing import show, watching  # noqa: PLC0415  # as above
        from gpufleet.history.recorder import utc_now  # noqa: PLC0415
        from gpufleet.model import RunReport  # noqa: PLC0415

        now = utc_now()
        with watching(view, (), command, selection):
            show(RunReport("", command, selection, now, now, ()), 0, view)
    if not view.quiet:
        what = f"shard {view.shard} of {selection} has" if view.shard else f"{selection} stands for"
        note(printable(f"nothing to do: {what} no node"))
    return 0


def may_be_empty(hosts: str, limit: str | None) -> bool:
    """Whether the failed nodes are what is to be reset, not what is to be left out."""
    from gpufleet.inventory import words  # noqa: PLC0415  # as above

    texts = [hosts, *([] if limit is None else [limit])]
    return any(
        operator in ",&" and _is_ours(word) for text in texts for operator, word in words(text)
    )
