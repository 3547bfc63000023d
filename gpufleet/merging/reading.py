"""The text that `--json` or `--jsonl` wrote → the runs in it, checked. Pure.

What a file holds isn't trusted: it may be cut off, edited, or no run at all. Each problem is one line
that names the file, what was read and the cure.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpufleet.errors import UsageError
from gpufleet.inventory.names import check_name
from gpufleet.inventory.problems import show
from gpufleet.inventory.sharding import parse_shard
from gpufleet.masking import printable
from gpufleet.model import Merged, NodeReport, RunReport
from gpufleet.records import dataclass
from gpufleet.render.document import SCHEMA, VERDICTS

LEAVE_OUT = "leave it out, and its shard counts as missing"

_LARGEST = 2**53
"""Beyond that a number of JSON is no whole number to most readers, and no amount of anything."""

_OTHERS = frozenset({"hosts", "history"})
_NODES: TypeAdapter[NodeReport] = TypeAdapter(NodeReport)
_MERGED: TypeAdapter[tuple[Merged, ...]] = TypeAdapter(tuple[Merged, ...])


@dataclass(frozen=True)
class Part:
    """One run of a file. `merged`: the runs that it is made of, itself for a plain one."""

    source: str
    report: RunReport
    merged: tuple[Merged, ...]


def read_parts(text: str, source: str) -> list[Part]:
    """Every run in `text`, at least one: documents and event streams, one behind the other.

    Raises `UsageError`, one line, for the first thing that isn't one.
    """
    source = printable(source)
    try:
        return [_part(document, source) for document in _documents(text)]
    except _Unfit as error:
        raise UsageError(printable(f"{source}: {error}"[:400])) from error


class _Unfit(Exception):
    """Why a text is no run, without its file."""


def _documents(text: str) -> Iterator[Mapping[str, Any]]:
    """Whole documents; the events of a run are put together to one."""
    start: Mapping[str, Any] | None = None
    nodes: list[object] = []
    for value in _values(text):
        event = value.get("event") if isinstance(value, dict) else None
        if event is None:
            _check_open(start, nodes)
            yield _document(value)
        elif event == "start":
            _check_open(start, nodes)
            _schema(value)
            start, nodes = value, []
        elif start is None:
            raise _Unfit(f"its first event is {show(event)}, not start: the beginning is missing")
        elif event == "node":
            nodes.append(value.get("node"))
        elif event == "end":
            yield _document({**value, "nodes": nodes})
            start = None
    _check_open(start, nodes)


def _check_open(start: Mapping[str, Any] | None, nodes: Sequence[object]) -> None:
    if start is not None:
        read = start.get("nodes")
        of = f" of {read}" if isinstance(read, int) else ""
        raise _Unfit(f"cut off after {len(nodes)}{of} nodes: its run didn't end: {LEAVE_OUT}")


def _values(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder(parse_constant=_no_number)
    at, end = 0, len(text.rstrip())
    if not end:
        raise _Unfit(f"empty: its run wrote no result: {LEAVE_OUT}")
    while at < end:
        while text[at].isspace():
            at += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except RecursionError as error:
            raise _Unfit("nested too deeply: not what gpufleet wrote") from error
        except ValueError as error:
            line = text.count("\n", 0, getattr(error, "pos", at)) + 1
            if text.lstrip().startswith("{") and not text[:end].endswith("}"):
                last = text.count("\n", 0, end) + 1
                raise _Unfit(f"cut off in line {last}: {LEAVE_OUT}") from error
            said = getattr(error, "msg", None) or error
            raise _Unfit(f"line {line}: not JSON: {said}") from error
        yield value


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is no number")


def _document(value: object) -> Mapping[str, Any]:
    command = value.get("command") if isinstance(value, dict) else None
    if isinstance(command, str) and command in _OTHERS:
        raise _Unfit(f"of gpufleet {command}, which contacts no node: not a run")
    if not isinstance(value, dict) or not {"schema", "command", "nodes"} <= value.keys():
        raise _Unfit("not what --json or --jsonl of a run wrote")
    _schema(value)
    return value


def _schema(value: Mapping[str, Any]) -> None:
    number = value.get("schema")
    if number != SCHEMA or isinstance(number, bool):
        read = number if isinstance(number, int) else show(str(number))
        raise _Unfit(f"schema {read}, and this version reads {SCHEMA}: use one version for all")


def _part(document: Mapping[str, Any], source: str) -> Part:
    command = document["command"]
    if not isinstance(command, str) or command not in VERDICTS:
        raise _Unfit(f"the command {show(str(command))}: not one of {', '.join(VERDICTS)}")
    _check_numbers(document)
    dry_run = document.get("dry_run")
    if not isinstance(dry_run, bool) or not isinstance(document["nodes"], list):
        raise _Unfit("not what --json of a run wrote: dry_run or nodes is missing")
    nodes = tuple(_node(node, command, dry_run=dry_run) for node in document["nodes"])
    names = Counter(node.host for node in nodes)
    if names and (most := names.most_common(1)[0])[1] > 1:
        raise _Unfit(f"{most[0]} is in it twice")
    _check_summary(document, nodes, command)
    exit_code = _exit_code(document)
    started = _time(document, "started")
    finished = document.get("finished")
    merged = _merged(document, len(nodes), exit_code)
    codes = [one.exit_code or 0 for one in merged]
    report = RunReport(
        _text(document, "run_id"),
        command,
        _text(document, "selection"),
        started,
        started if finished is None else _time(document, "finished"),
        nodes,
        dry_run,
        interrupted_by=max([code - 128 for code in codes if code > 128], default=None),
        shard=_shard(document),
    )
    return Part(source, report, merged)


def _merged(document: Mapping[str, Any], nodes: int, exit_code: int | None) -> tuple[Merged, ...]:
    """What an earlier merge was made of counts, not what it came to: the rest may be here now."""
    if "merged" not in document:
        shard = _shard(document)
        selection = _text(document, "selection")
        return (Merged(_text(document, "run_id"), selection, shard, nodes, exit_code),)
    try:
        merged = _MERGED.validate_python(document["merged"])
    except ValidationError as error:
        raise _Unfit(_said(error, "merged")) from error
    if not merged:
        raise _Unfit("merged of no run")
    for one in merged:
        _shard({"shard": one.shard})
        _exit_code({"exit_code": one.exit_code})
    return merged


def _node(value: object, command: str, *, dry_run: bool) -> NodeReport:
    if not isinstance(value, dict):
        raise _Unfit("a node that is no mapping")
    given = dict(value)
    if dry_run:
        given["planned"] = given.pop("killed", ())
    elif command == "status":
        given["planned"] = given.pop("would_kill", ())
    try:
        node = _NODES.validate_python(given)
        check_name(node.host)
    except ValidationError as error:
        raise _Unfit(_said(error, f"node {show(str(value.get('host')))}")) from error
    except ValueError as error:
        raise _Unfit(f"a node called {show(str(value.get('host')))}: {error}") from error
    if node.verdict not in VERDICTS[command]:
        raise _Unfit(f"{node.host}: {command} gives no verdict {node.verdict}")
    if node.stage != printable(node.stage) or "\n" in node.stage:
        raise _Unfit(f"{node.host}: read the stage {show(node.stage)}")
    return node


def _said(error: ValidationError, where: str) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{where}: {place}: {first['msg']}: not what gpufleet wrote"


def _check_summary(document: Mapping[str, Any], nodes: Sequence[NodeReport], command: str) -> None:
    summary = document.get("summary")
    if not isinstance(summary, dict):
        raise _Unfit("it has no summary")
    counts = Counter(node.verdict for node in nodes)
    for verdict in VERDICTS[command]:
        said = summary.get(verdict.value, 0)
        if said != counts[verdict]:
            raise _Unfit(
                f"its summary says {show(str(said))} {verdict}, and it has {counts[verdict]}: "
                "damaged or edited"
            )


def _exit_code(document: Mapping[str, Any]) -> int | None:
    code = document.get("exit_code")
    if code is None:  # a record of a run that was killed
        return None
    if isinstance(code, bool) or not isinstance(code, int) or not _possible(code):
        raise _Unfit(f"the exit code {show(str(code))}, which no run has")
    return code


def _possible(code: int) -> bool:
    return code in {0, 1, 3, 4} or 128 < code <= 128 + 64


def _shard(document: Mapping[str, Any]) -> str:
    shard = document.get("shard", "")
    if shard == "":
        return ""
    if not isinstance(shard, str):
        raise _Unfit("its shard is no text")
    try:
        return str(parse_shard(shard))
    except UsageError as error:
        raise _Unfit(str(error).replace("--shard", "its shard")) from error


def _text(document: Mapping[str, Any], key: str) -> str:
    read = document.get(key)
    if not isinstance(read, str):
        raise _Unfit(f"its {key} is no text: not what gpufleet wrote")
    return read


def _time(document: Mapping[str, Any], key: str) -> str:
    """As all times of gpufleet are: UTC in milliseconds, so that texts sort as times do."""
    read = _text(document, key)
    try:
        datetime.strptime(read, "%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: DTZ007  # only whether it is one
    except ValueError as error:
        raise _Unfit(f"{key}: read {show(read)}: no time as gpufleet writes them") from error
    return read


def _check_numbers(document: object) -> None:
    """No table can show a number of a thousand digits, and nothing has that many of anything."""
    left = [document]  # no recursion: what is nested too deeply for it may still be JSON
    while left:
        value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise _Unfit("a number that is none: not what gpufleet wrote")
        if isinstance(value, int | float) and abs(value) > _LARGEST:
            raise _Unfit("a number beyond all measure: not what gpufleet wrote")
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
