"""`gpufleet status`: the fleet as a heat map. One row per node or group of equal nodes: a sign per
GPU, the memory in use, and who holds it. No decision, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from gpufleet.masking import printable
from gpufleet.model import Gpu, NodeReport, ProcessLine, RunReport, Verdict
from gpufleet.render.folding import folded, names
from gpufleet.render.ink import PLAIN, SEVERITY, Ink, age, amount
from gpufleet.render.text import aligned, details, needs_eyes, summary

Sort = Literal["name", "memory", "verdict"]
Only = Literal["idle", "busy", "broken", "unknown", "unreachable"]
SORTS: tuple[str, ...] = get_args(Sort)
ONLIES: tuple[str, ...] = get_args(Only)

_NODE_WIDTH = 18
"""A folded name longer than this is cut on a screen: the rest of the row matters more."""


def chosen(report: RunReport, only: Sequence[str], sort: str, *, quiet: bool) -> list[NodeReport]:
    """The nodes to show, in order. `name` is the order of the selection."""
    wanted = {Verdict[word.upper()] for word in only}
    nodes = [
        node
        for node in report.nodes
        if (not wanted or node.verdict in wanted) and (not quiet or needs_eyes(node))
    ]
    if sort == "memory":
        nodes.sort(key=lambda node: -used(node))
    elif sort == "verdict":
        nodes.sort(key=lambda node: SEVERITY.index(node.verdict))
    return nodes


def status_text(
    report: RunReport,
    *,
    ink: Ink = PLAIN,
    verbose: int = 0,
    quiet: bool = False,
    sort: str = "name",
    only: Sequence[str] = (),
    height: int = 0,
) -> str:
    """The map and its last line. `height`: so many lines at most, the rest told as a number."""
    nodes = chosen(report, only, sort, quiet=quiet)
    if quiet and not nodes:
        return ""
    entries = [[node] for node in nodes] if verbose else folded(nodes, _shown)
    known = [g.memory_total_mib or g.memory_used_mib or 0 for node in nodes for g in node.gpus]
    gpus = max([4, *(len(node.gpus) for node in nodes)])
    limit = max(_NODE_WIDTH, ink.width // 5) if ink.width else 0
    titles = [ink.cut(names(entry), limit) for entry in entries]
    word = 11 if any(node.verdict in _LONG for node in nodes) else 7
    widths = (max(map(len, ["NODE", *titles])), word, gpus, 8)
    lines = [aligned(("NODE", "VERDICT", "GPUS", "MEMORY", "HELD BY"), (*widths, 7))]
    blocks = [
        [
            _row(title, entry[0], widths, max(known, default=0), ink),
            *details(title, entry, report, ink, verbose),
        ]
        for title, entry in zip(titles, entries, strict=True)
    ]
    tail = [ink.legend(), summary(report, ink)]
    for number, block in enumerate(blocks):
        if height and len(lines) + len(block) + len(tail) + 1 > height:
            left = sum(len(entry) for entry in entries[number:])
            lines.append(f"{ink.dots} {left} more (--only, --sort, or a larger terminal)")
            break
        lines.extend(block)
    return "\n".join([*lines, *tail]) + "\n"


_LONG = {Verdict.UNREACHABLE, Verdict.NOT_STARTED}


def used(node: NodeReport) -> int:
    """MiB in use on all GPUs that could be read."""
    return sum(gpu.memory_used_mib or 0 for gpu in node.gpus)


def cells(gpus: Sequence[Gpu], full_mib: int, ink: Ink) -> str:
    """One sign per GPU, by its own memory, else by the largest that is known."""
    return ink.cells((g.memory_used_mib, g.memory_total_mib or full_mib) for g in gpus)


def top_holder(node: NodeReport) -> ProcessLine | None:
    """Whoever the driver charges most memory to; where it says nothing, the oldest candidate.

    Spared processes count only by memory: a sheltered service without any holds nothing.
    """
    lines = [*node.planned, *(line for line in node.spared if line.memory_mib)]
    return max(lines, key=lambda line: (line.memory_mib or 0, line.age_s or 0), default=None)


def _shown(node: NodeReport) -> tuple[object, ...]:
    """Busy nodes fold only with their like: same cells, and the same holder, about as old (seconds,
    minutes, hours or days): what was started on all at once folds. As many others, of the same
    people and jobs: the row counts them, and nobody's may hide behind another's."""
    top = top_holder(node)
    return (
        tuple((gpu.memory_used_mib, gpu.raw) for gpu in node.gpus),
        (top.user, top.command, top.owner, age(top.age_s).lstrip("0123456789 ")) if top else None,
        len(node.planned),
        frozenset((line.user, line.owner) for line in node.planned),
    )


def _row(
    title: str, node: NodeReport, widths: tuple[int, int, int, int], full_mib: int, ink: Ink
) -> str:
    """Padded by hand: colours have no width."""
    shades = cells(node.gpus, full_mib, ink) if node.gpus else "-"
    shades += " " * (widths[2] - max(1, len(node.gpus)))
    word = ink.verdict(node.verdict, node.verdict.value.ljust(widths[1]))
    memory = amount(used(node)) if node.gpus else "-"
    row = f"{title.ljust(widths[0])}  {word}  {shades}  {memory.ljust(widths[3])}  "
    room = max(8, ink.width - sum(widths) - 8) if ink.width else 0
    return (row + ink.cut(_held(node), room)).rstrip()


def _held(node: NodeReport) -> str:
    """`alice sglang.service 3 h: python3 -m sglang.launch_server … and 9 more`"""
    top = top_holder(node)
    if top is None:
        return ""
    words = [top.user, top.owner, age(top.age_s)]
    who = " ".join(printable(word) for word in words if word)
    others = len(node.planned) - (1 if top in node.planned else 0)
    more = f" (+{others})" if others else ""
    return f"{who}{more}: {printable(top.command)}"
