"""The drawings of a page: strips of GPU cells and bars of phases, as inline SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.render.page.escaping import html
from gpufleet.render.page.reading import PageGpu, PageMoment

_STEP, _SIZE = 14, 12

PHASES = {
    "connect": "connecting",
    "look": "looking",
    "kill": "signals",
    "free": "waiting for memory",
    "settle": "settling",
    "retry": "trying again",
    "guard": "guard",
    "before": "before",
    "after": "after",
}
"""Phase → what a reader is told it is. Others are drawn without a colour of their own."""


def strip(gpus: Sequence[PageGpu], full_mib: int, *, before: bool) -> str:
    """One cell per GPU: empty at 0 MiB, filled by its share of the memory, `?` where not readable."""
    when = "before" if before else "after"
    cells = []
    for number, gpu in enumerate(gpus):
        mib = gpu.memory_before_mib if before else gpu.memory_used_mib
        told = "not readable" if mib is None else f"{mib:,} MiB"
        if mib is None and not before and gpu.raw:
            told = f"reads {gpu.raw}"
        title = f"<title>{html(f'GPU {gpu.index} {when}: {told}')}</title>"
        x = number * _STEP + 1
        box = f'x="{x}" y="1" width="{_SIZE}" height="{_SIZE}" rx="2"'
        if mib is None:
            cells.append(
                f'<g>{title}<rect class="odd" {box}/><text x="{x + 6}" y="10.5">?</text></g>'
            )
        elif mib == 0:
            cells.append(f'<rect class="zero" {box}>{title}</rect>')
        else:
            share = min(1.0, mib / max(gpu.memory_total_mib or full_mib, 1))
            shade = f"{0.3 + 0.7 * share:.2f}"
            cells.append(f'<rect class="used" fill-opacity="{shade}" {box}>{title}</rect>')
    width = max(1, len(gpus)) * _STEP
    label = html(f"GPU memory {when}: " + ", ".join(_told(g, before=before) for g in gpus))
    return (
        f'<svg class="strip" viewBox="0 0 {width} 14" width="{width}" height="14" role="img"'
        f' aria-label="{label}">{"".join(cells)}</svg>'
    )


def _told(gpu: PageGpu, *, before: bool) -> str:
    mib = gpu.memory_before_mib if before else gpu.memory_used_mib
    return "not readable" if mib is None else f"{mib} MiB"


def bars(timeline: Sequence[PageMoment], elapsed_s: float, scale_s: float) -> str:
    """The phases of one node side by side, `scale_s` seconds wide."""
    drawn = []
    ends = [moment.at_s for moment in timeline[1:]] + [elapsed_s]
    for moment, end in zip(timeline, ends, strict=True):
        if moment.phase == "done":
            continue
        left = 1000 * moment.at_s / scale_s
        width = max(2.0, 1000 * (end - moment.at_s) / scale_s)
        kind = moment.phase if moment.phase in PHASES else "other"
        detail = f": {moment.detail}" if moment.detail else ""
        told = html(f"{moment.phase} {moment.at_s:.2f} to {end:.2f} s{detail}")
        drawn.append(
            f'<rect class="{kind}" x="{left:.1f}" y="0" width="{width:.1f}" height="10">'
            f"<title>{told}</title></rect>"
        )
    return (
        '<svg class="bars" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img"'
        f' aria-label="phases">{"".join(drawn)}</svg>'
    )
