"""A run as text: one line per node or per group of equal nodes, and below it what a person needs to
act. No decision, no I/O."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from gpufleet.masking import printable
from gpufleet.model import Escalation, Gpu, NodeReport, ProcessLine, RunReport, Stopped, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.render.document import VERDICTS
from gpufleet.render.folding import folded, names
from gpufleet.render.ink import PLAIN, WELL, Ink, age


def run_text(report: RunReport, *, ink: Ink = PLAIN, verbose: int = 0, quiet: bool = False) -> str:
    """The table and its last line. `quiet`: only nodes that failed or carry a warning, or nothing."""
    shown = [node for node in report.nodes if not quiet or needs_eyes(node)]
    if quiet and not shown:
        return ""
    if verbose or report.dry_run:
        entries = [[node] for node in shown]
    else:
        entries = folded(shown, lambda node: tuple(_gpu_parts(node.gpus, ink)))
    rows = [_row(entry, report, ink) for entry in entries]
    header = ("NODE", "VERDICT", "GPUS", *_count_titles(report), "SECONDS")
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    if ink.width and (over := sum(widths) + 2 * len(widths) - 2 - ink.width) > 0:
        # Of a group the names may be cut: those of nodes with a trouble of their own stay whole.
        alone = [len(row[0]) for row, entry in zip(rows, entries, strict=True) if len(entry) == 1]
        widths[0] = max(12, *alone, widths[0] - over) if alone else max(12, widths[0] - over)
        rows = [(ink.cut(row[0], widths[0]), *row[1:]) for row in rows]
    lines = [aligned(header, widths)]
    for entry, row in zip(entries, rows, strict=True):
        before, word, behind = aligned(row, widths).partition(f"  {row[1]}")
        lines.append(before + word.replace(row[1], ink.verdict(entry[0].verdict)) + behind)
        lines.extend(details(row[0], entry, report, ink, verbose))
    lines.append(summary(report, ink))
    return "\n".join(lines) + "\n"


def node_line(node: NodeReport, done: int, total: int) -> str:
    """One line for the screen while a run goes on: `[3/16] gpu03 CLEAN 0.9 s`."""
    reason = f": {printable(node.reason)}" if node.reason and node.verdict not in WELL else ""
    return f"[{done}/{total}] {node.host} {node.verdict} {node.elapsed_s:.1f} s{reason}"


def hosts_text(specs: Sequence[NodeSpec], groups: dict[str, list[str]]) -> str:
    """One line per node: name, where it is reached, GPUs, groups."""
    rows = [("NODE", "ADDRESS", "PORT", "USER", "GPUS", "GROUPS")]
    for spec in specs:
        access = spec.access
        row = (spec.name, access.address, str(access.port), access.user, str(spec.policy.gpus))
        rows.append((*row, ",".join(groups.get(spec.name, [])) or "-"))
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "".join(aligned(row, widths) + "\n" for row in rows)


def gpu_cell(gpus: Sequence[Gpu], ink: Ink = PLAIN) -> str:
    """`8 × 0 MiB`; different amounts side by side; what isn't a number, as it was read."""
    if not gpus:
        return "-"
    parts = [
        ink.cut(part, _PART_WIDTH) if len(part) > _PART_WIDTH else part
        for part in _gpu_parts(gpus, ink)
    ]
    return ", ".join(parts[:4]) + (f", {ink.dots}" if len(parts) > 4 else "")


_PART_WIDTH = 40
"""What a GPU reads instead of a number can be anything; all rows are as wide as the widest."""


def _gpu_parts(gpus: Sequence[Gpu], ink: Ink) -> list[str]:
    """All of it, where the cell shows four at most: nodes that differ in the rest aren't equal."""
    amounts = Counter(gpu.memory_used_mib for gpu in gpus if gpu.memory_used_mib is not None)
    parts = [f"{count} {ink.times} {mib} MiB" for mib, count in sorted(amounts.items())]
    odd = [f"GPU {g.index}: {printable(g.raw) or 'nothing'}" for g in gpus if g.raw or _odd(g)]
    return parts + odd


def _odd(gpu: Gpu) -> bool:
    return gpu.memory_used_mib is None


def needs_eyes(node: NodeReport) -> bool:
    return node.verdict not in WELL or bool(node.warnings)


def _count_titles(report: RunReport) -> tuple[str, ...]:
    if report.command in {"check", "restore"}:
        return ()
    acted = report.command == "reset" and not report.dry_run
    return ("KILLED" if acted else "WOULD KILL", "SPARED")


def _row(entry: Sequence[NodeReport], report: RunReport, ink: Ink) -> tuple[str, ...]:
    """Of a group: from the least to the most, and the slowest node's seconds."""
    acted = report.command == "reset" and not report.dry_run
    killed = _span([len(node.killed if acted else node.planned) for node in entry])
    spared = _span([len(node.spared) for node in entry])
    counts = (killed, spared) if _count_titles(report) else ()
    seconds = f"{max(node.elapsed_s for node in entry):.1f}"
    first = entry[0]
    return (names(entry), first.verdict.value, gpu_cell(first.gpus, ink), *counts, seconds)


def _span(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least}-{most}"


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()


def details(
    title: str, entry: Sequence[NodeReport], report: RunReport, ink: Ink, verbose: int
) -> Iterator[str]:
    """The lines below a row. `title`: its name as shown; nodes that failed are never only cut."""
    node = entry[0]
    of = f" on {node.host}" if len(entry) > 1 else ""
    if node.verdict not in WELL and names(entry) != title:
        yield _wrapped(f"    nodes: {names(entry)}", ink)
    if node.reason and node.verdict is not Verdict.BUSY:  # the columns say it
        stage = f" [{node.stage}]" if node.stage else ""
        yield _wrapped(f"    why{stage}{of}: {printable(node.reason)}", ink)
    if node.next_step:  # never wrapped: it is there to be pasted
        yield f"    next{of}: {printable(node.next_step)}"
    for warning in node.warnings:
        yield _wrapped(f"    warning: {printable(warning)}", ink)
    for one in node.leftovers:
        done = {"": "would remove", "yes": "removed"}.get(one.removed, "left")
        why = f": {one.removed}" if done == "left" else ""
        yield printable(f"    {done}: {one.path}, {one.size_bytes / (1 << 20):.1f} MiB{why}")
    for stop in node.stopped:
        yield f"    {_stopped(stop, report)}"
    for rung in node.escalations:
        yield _wrapped(f"    {_escalated(rung)}", ink)
    processes = [("survivor", node.survivors)]
    if verbose or report.dry_run:
        acted = report.command == "reset" and not report.dry_run
        processes += [("killed", node.killed) if acted else ("would kill", node.planned)]
        processes += [("spared", node.spared)]
    for kind, lines in processes:
        yield from (_wrapped(line, ink) for line in _process_lines(kind, lines))
    if verbose:
        for gpu in node.gpus:
            used = f"{gpu.memory_used_mib} MiB" if gpu.memory_used_mib is not None else gpu.raw
            yield f"    {gpu.index}, {printable(used)}"


def _wrapped(line: str, ink: Ink) -> str:
    if not ink.width or len(line) <= ink.width:
        return line
    return textwrap.fill(
        line,
        max(ink.width, 40),
        subsequent_indent=" " * 8,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )


def _stopped(stop: Stopped, report: RunReport) -> str:
    """`stopped: sglang.service by systemctl stop sglang.service; started again: yes`"""
    if report.command == "restore":
        return printable(f"started: {stop.owner} by {stop.action}: {stop.restored}")
    if report.dry_run:
        why = f"would not stop: {stop.owner}: {stop.stopped}"
        return printable(why if stop.stopped else f"would stop: {stop.owner} by {stop.action}")
    again = f"; started again: {stop.restored or 'no (gpufleet restore)'}"
    if stop.stopped == "yes":
        return printable(f"stopped: {stop.owner} by {stop.action}{again}")
    unsure = stop.restored or stop.stopped.startswith("not confirmed")
    said = f"not stopped: {stop.owner} by {stop.action}: {stop.stopped}"
    return printable(f"{said}{again}" if unsure else said)


def _escalated(one: Escalation) -> str:
    """`gpu-reset: yes (GPU 3 wants recovery action 'Reset')`; in a dry run with what it would do."""
    if not one.done:
        return printable(f"would escalate: {', '.join(one.steps)} ({one.why})")
    return printable(f"{one.rung}: {one.done} ({one.why})")


def _process_lines(title: str, lines: Sequence[ProcessLine]) -> Iterator[str]:
    for line in lines:
        more = [*filter(None, (line.managed, line.restart and f"restart {line.restart}"))]
        owner = f" {line.owner}" if line.owner else ""
        owner += f" [{', '.join(more)}]" if more else ""
        signal = f" {printable(line.signal)}" if line.signal else ""
        since = f"{age(line.age_s)} " if line.age_s is not None else ""
        yield (
            f"    {title}{signal}: {line.pid} {printable(line.user)}{printable(owner)}"
            f" {since}{printable(line.command)}  ({printable(line.rule)}: {printable(line.why)})"
        )


def summary(report: RunReport, ink: Ink = PLAIN) -> str:
    """`16 nodes: 15 CLEAN, 1 DIRTY (1.3 s, run 20260131-020000-9f3a1c)`"""
    counts = [
        f"{report.count(verdict)} {ink.verdict(verdict)}"
        for verdict in VERDICTS[report.command]
        if report.count(verdict)
    ]
    nodes = "1 node" if len(report.nodes) == 1 else f"{len(report.nodes)} nodes"
    dry = ", dry run: nothing was signalled" if report.dry_run else ""
    seconds = (_time(report.finished) - _time(report.started)).total_seconds()
    shard = f", shard {report.shard}" if report.shard else ""
    if report.missing:
        counts.append(
            "1 shard missing"
            if len(report.missing) == 1
            else f"{len(report.missing)} shards missing"
        )
    if len(report.merged) > 1:
        shard = f" of {len(report.merged)} runs"
    return f"{nodes}: {', '.join(counts)}{dry} ({seconds:.1f} s, run {printable(report.run_id)}{shard})"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
