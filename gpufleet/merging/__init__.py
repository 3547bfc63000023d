"""Several runs as one: what `--json` or `--jsonl` wrote for each → one report, one exit status.

Pure: text in, `RunReport` out. Nothing is believed that no file says: a node in two of them, a
shard in none, a file cut off in the middle never leave a better result than each file gave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpufleet.errors import UsageError
from gpufleet.inventory.ranges import natural
from gpufleet.inventory.sharding import Shard, part_of
from gpufleet.merging.reading import Part, read_parts
from gpufleet.model import Merged, NodeReport, RunReport, Verdict

__all__ = ["Part", "merge", "merged_exit_code", "read_parts", "with_absent"]

_TOLD = 5
"""Lines of one kind; what comes after is counted."""


def merge(parts: Sequence[Part]) -> RunReport:
    """All nodes of all parts, each once, in the order of a selection.

    Raises `UsageError`, a line per problem, where the parts contradict each other.
    """
    runs = [part.report for part in parts]
    problems = [*_unlike(parts), *_shard_problems(parts)] or [*_twice(parts)]
    if problems:
        raise UsageError("\n".join(problems))
    nodes = sorted((node for run in runs for node in run.nodes), key=lambda n: natural(n.host))
    merged = tuple(one for part in parts for one in part.merged)
    selections = list(dict.fromkeys(one.selection for one in merged))
    signals = [run.interrupted_by for run in runs if run.interrupted_by is not None]
    first = runs[0]
    return replace(
        first,
        run_id=_name(merged),
        selection=selections[0] if len(selections) == 1 else ",".join(selections),
        started=min(run.started for run in runs),
        finished=max(run.finished for run in runs),
        nodes=tuple(nodes),
        interrupted_by=max(signals, default=None),
        shard="",
        merged=merged,
        missing=tuple(_missing(merged)),
    )


def merged_exit_code(report: RunReport, *, allow_skipped: bool = False) -> int:
    """What the nodes say, and no better than any of the runs said of itself; 3 where a shard is
    missing."""
    codes = [report.exit_code(allow_skipped=allow_skipped)]
    codes += [3 if one.exit_code is None else one.exit_code for one in report.merged]
    if allow_skipped:
        codes = [0 if code == _SKIPPED else code for code in codes]
    if not report.nodes and all(code == 0 for code in codes[1:]):
        codes = codes[1:]  # shards without a node, each of them well
    if report.missing:
        codes.append(3)
    return max(codes, key=_weight)


_SKIPPED = 4


def _weight(code: int) -> tuple[bool, int, int]:
    """Interrupted before 3 before 1 before 4 before 0."""
    order = (0, _SKIPPED, 1, 3)
    return code > 128, order.index(code) if code in order else len(order), code


def with_absent(report: RunReport, addresses: dict[str, str]) -> RunReport:
    """The report with every host of `addresses` (host → address) that no file has: NOT STARTED.

    Where it has them all, no shard is missing: what had no node wrote no file.
    """
    known = {node.host for node in report.nodes}
    absent = [
        NodeReport(
            host,
            address,
            Verdict.NOT_STARTED,
            "in none of the merged files",
            f"gpufleet {report.command} --hosts {host}",
        )
        for host, address in addresses.items()
        if host not in known
    ]
    nodes = sorted((*report.nodes, *absent), key=lambda node: natural(node.host))
    return replace(report, nodes=tuple(nodes), missing=report.missing if absent else ())


def _name(merged: Sequence[Merged]) -> str:
    """The same for the same runs, whatever the order of the files."""
    ids = sorted(one.run_id for one in merged)
    if len(ids) == 1:
        return ids[0]
    return f"merged-{hashlib.sha256(' '.join(ids).encode()).hexdigest()[:8]}"


def _unlike(parts: Sequence[Part]) -> Iterator[str]:
    first = parts[0]
    told = _kind(first.report)
    for part in parts[1:]:
        if _kind(part.report) != told:
            yield (
                f"{part.source}: of {_kind(part.report)}, and {first.source} is of {told}: "
                "merge what one command wrote"
            )


def _kind(report: RunReport) -> str:
    return f"{report.command}{' --dry-run' if report.dry_run else ''}"


def _shard_problems(parts: Sequence[Part]) -> Iterator[str]:
    seen: dict[tuple[str, str], tuple[str, Merged]] = {}
    sizes: dict[str, tuple[str, str]] = {}
    for part in parts:
        for one in part.merged:
            if not one.shard:
                continue
            of = one.shard.partition("/")[2]
            size, source = sizes.setdefault(one.selection, (of, part.source))
            if size != of:
                yield (
                    f"{part.source}: shard {one.shard} of {one.selection}, and {source} has one of "
                    f"{size} parts: all parts of a selection have one N"
                )
            earlier, same = seen.setdefault((one.selection, one.shard), (part.source, one))
            if same is not one:
                yield (
                    f"{part.source}: shard {one.shard} of {one.selection} is in {earlier} already: "
                    "give each once"
                )
        yield from _strangers(part)


def _strangers(part: Part) -> Iterator[str]:
    if not part.report.shard:
        return
    number, _, of = part.report.shard.partition("/")
    for node in part.report.nodes:
        if (right := part_of(node.host, int(of))) != int(number):
            yield (
                f"{part.source}: {node.host} is in shard {right}/{of}, not in "
                f"{part.report.shard}: not as gpufleet wrote it"
            )
            return


def _twice(parts: Sequence[Part]) -> Iterator[str]:
    first: dict[str, tuple[str, NodeReport]] = {}
    problems = []
    for part in parts:
        for node in part.report.nodes:
            source, earlier = first.setdefault(node.host, (part.source, node))
            if earlier is not node:
                problems.append(
                    f"{part.source}: {node.host} ({node.verdict}) is in {source} "
                    f"({earlier.verdict}) already: leave out the file that no longer holds"
                )
    yield from problems[:_TOLD]
    if len(problems) > _TOLD:
        yield f"{len(problems) - _TOLD} more nodes are in two files"


def _missing(merged: Sequence[Merged]) -> Iterator[str]:
    """`2/4 of inference-pool`, for each shard that no run is."""
    found: dict[tuple[str, int], set[int]] = {}
    for one in merged:
        if one.shard:
            part, _, of = one.shard.partition("/")
            found.setdefault((one.selection, int(of)), set()).add(int(part))
    for (selection, size), parts in found.items():
        for number in range(1, size + 1):
            if number not in parts:
                yield f"{Shard(number, size)} of {selection}"
