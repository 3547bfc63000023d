"""A run as text: one line per node, and below it what a person needs to act. No decision, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from gpufleet.masking import printable
from gpufleet.model import Gpu, NodeReport, ProcessLine, RunReport, Verdict
from gpufleet.policy import NodeSpec
from gpufleet.render.document import VERDICTS

_COLOURS = {
    Verdict.CLEAN: "32",
    Verdict.IDLE: "32",
    Verdict.READY: "32",
    Verdict.BUSY: "36",
    Verdict.DIRTY: "33",
    Verdict.SKIPPED: "33",
    Verdict.NOT_STARTED: "33",
    Verdict.UNKNOWN: "35",
    Verdict.BROKEN: "31",
    Verdict.UNREACHABLE: "31",
}
_WELL = {Verdict.CLEAN, Verdict.IDLE, Verdict.BUSY, Verdict.READY}


def run_text(
    report: RunReport, *, colour: bool = False, verbose: int = 0, quiet: bool = False
) -> str:
    """The table and its last line. `quiet`: only nodes that failed or carry a warning, or nothing."""
    shown = [node for node in report.nodes if not quiet or _needs_eyes(node)]
    if quiet and not shown:
        return ""
    rows = [_row(node, report) for node in shown]
    header = ("NODE", "VERDICT", "GPUS", *_count_titles(report), "SECONDS")
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [_aligned(header, widths)]
    for node, row in zip(shown, rows, strict=True):
        line = _aligned(row, widths)
        if colour:
            word = node.verdict.value
            line = line.replace(word, f"\x1b[{_COLOURS[node.verdict]}m{word}\x1b[0m", 1)
        lines.append(line)
        lines.extend(_details(node, report, verbose))
    lines.append(_summary(report))
    return "\n".join(lines) + "\n"


def node_line(node: NodeReport, done: int, total: int) -> str:
    """One line for the screen while a run goes on: `[3/16] gpu03 CLEAN 0.9 s`."""
    reason = f": {printable(node.reason)}" if node.reason and node.verdict not in _WELL else ""
    return f"[{done}/{total}] {node.host} {node.verdict} {node.elapsed_s:.1f} s{reason}"


def hosts_text(specs: Sequence[NodeSpec], groups: dict[str, list[str]]) -> str:
    """One line per node: name, where it is reached, GPUs, groups."""
    rows = [("NODE", "ADDRESS", "PORT", "USER", "GPUS", "GROUPS")]
    for spec in specs:
        access = spec.access
        row = (spec.name, access.address, str(access.port), access.user, str(spec.policy.gpus))
        rows.append((*row, ",".join(groups.get(spec.name, [])) or "-"))
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "".join(_aligned(row, widths) + "\n" for row in rows)


def gpu_cell(gpus: Sequence[Gpu]) -> str:
    """`8 × 0 MiB`; different amounts side by side; what isn't a number, as it was read."""
    if not gpus:
        return "-"
    amounts = Counter(gpu.memory_used_mib for gpu in gpus if gpu.memory_used_mib is not None)
    parts = [f"{count} × {amount} MiB" for amount, count in sorted(amounts.items())]
    parts += [f"GPU {g.index}: {printable(g.raw) or 'nothing'}" for g in gpus if g.raw or _odd(g)]
    return ", ".join(parts[:4]) + (", …" if len(parts) > 4 else "")


def _odd(gpu: Gpu) -> bool:
    return gpu.memory_used_mib is None


def _needs_eyes(node: NodeReport) -> bool:
    return node.verdict not in _WELL or bool(node.warnings)


def _count_titles(report: RunReport) -> tuple[str, ...]:
    if report.command == "check":
        return ()
    acted = report.command == "reset" and not report.dry_run
    return ("KILLED" if acted else "WOULD KILL", "SPARED")


def _row(node: NodeReport, report: RunReport) -> tuple[str, ...]:
    killed = node.killed if report.command == "reset" and not report.dry_run else node.planned
    counts = (str(len(killed)), str(len(node.spared))) if _count_titles(report) else ()
    return (node.host, node.verdict.value, gpu_cell(node.gpus), *counts, f"{node.elapsed_s:.1f}")


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()


def _details(node: NodeReport, report: RunReport, verbose: int) -> Iterator[str]:
    if node.reason and node.verdict is not Verdict.BUSY:  # the columns say it
        stage = f" [{node.stage}]" if node.stage else ""
        yield f"    why{stage}: {printable(node.reason)}"
    if node.next_step:
        yield f"    next: {printable(node.next_step)}"
    for warning in node.warnings:
        yield f"    warning: {printable(warning)}"
    yield from _process_lines("survivor", node.survivors)
    if verbose or report.dry_run:
        killed = "would kill" if report.dry_run or report.command != "reset" else "killed"
        yield from _process_lines(killed, node.planned if killed == "would kill" else node.killed)
        yield from _process_lines("spared", node.spared)
    if verbose:
        for gpu in node.gpus:
            used = f"{gpu.memory_used_mib} MiB" if gpu.memory_used_mib is not None else gpu.raw
            yield f"    {gpu.index}, {printable(used)}"


def _process_lines(title: str, lines: Sequence[ProcessLine]) -> Iterator[str]:
    for line in lines:
        owner = f" {line.owner}" if line.owner else ""
        signal = f" {line.signal}" if line.signal else ""
        yield (
            f"    {title}{signal}: {line.pid} {line.user}{owner} {line.command}"
            f"  ({line.rule}: {printable(line.why)})"
        )


def _summary(report: RunReport) -> str:
    counts = [
        f"{report.count(verdict)} {verdict}"
        for verdict in VERDICTS[report.command]
        if report.count(verdict)
    ]
    nodes = "1 node" if len(report.nodes) == 1 else f"{len(report.nodes)} nodes"
    dry = ", dry run: nothing was signalled" if report.dry_run else ""
    seconds = (_time(report.finished) - _time(report.started)).total_seconds()
    return f"{nodes}: {', '.join(counts)}{dry} ({seconds:.1f} s, run {report.run_id})"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
