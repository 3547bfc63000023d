"""`gpufleet report`: one run as one HTML page for a ticket or a post-mortem. Document in, text out.

Self-contained: no script, no font, no request; its own policy forbids them all. What came from a
node goes through `html` and is text there, whatever it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import resources

from gpufleet.render.ink import SEVERITY, WELL
from gpufleet.render.page.escaping import html
from gpufleet.render.page.nodes import article, tone
from gpufleet.render.page.reading import PageNode, PageRun, read_run
from gpufleet.render.page.svg import PHASES, bars, strip

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_TIMELINES = 40
"""So many bars are shown at once; the quickest of the others wait behind a click."""


def run_page(document: Mapping[str, object]) -> str:
    """The page of a `--json` document. Raises `UsageError` for what is none."""
    run = read_run(document)
    nodes = sorted(run.nodes, key=lambda node: SEVERITY.index(node.verdict))
    title = _title(run)
    bad = any(node.verdict not in WELL for node in nodes)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{html(title)}</title><style>{_style()}</style></head><body><main>",
        *_head(run, title),
        *_nodes("Nodes that need a look", run, nodes, well=False),
        *_map(run, nodes),
        *_timeline(nodes),
        *_nodes("All other nodes" if bad else "Nodes", run, nodes, well=True),
        f"<footer>gpufleet, run {html(run.run_id)}</footer></main></body></html>",
    ]
    return "\n".join(parts) + "\n"


@cache
def _style() -> str:
    return resources.files("gpufleet").joinpath("render/page/style.css").read_text("ascii")


def _title(run: PageRun) -> str:
    what = {"reset": "Reset", "status": "Status", "check": "Check", "restore": "Restore"}[
        run.command
    ]
    dry = " (dry run)" if run.dry_run else ""
    return f"{what}{dry} of {run.selection or 'nodes'}"


def _head(run: PageRun, title: str) -> Iterator[str]:
    counts = Counter(node.verdict for node in run.nodes)
    shown = [verdict for verdict in SEVERITY if counts[verdict]]
    total = len(run.nodes)
    well = sum(counts[verdict] for verdict in WELL)
    bad = total - well
    names = ", ".join(f"{counts[v]} {v}" for v in shown)
    if bad:
        said = f"{bad} of {total} nodes {'needs' if bad == 1 else 'need'} a look"
    else:
        said = f"{'The node' if total == 1 else f'All {total} nodes'}: {names}"
    yield f"<header><p class=kicker>gpufleet {html(run.command)}</p><h1>{html(title)}</h1>"
    yield f'<p class="said {"bad" if bad else "well"}">{html(said)}</p>'
    yield f'<div class=share role=img aria-label="{html(names)}">'
    yield from (
        f'<span class="{tone(v)} v-{v.name.lower()}" style="flex-grow:{counts[v]}"></span>'
        for v in shown
    )
    yield "</div><ul class=counts>"
    yield from (
        f'<li><i class="{tone(v)} v-{v.name.lower()}"></i><b>{counts[v]}</b> {html(v.value)}</li>'
        for v in shown
    )
    yield "</ul><dl class=facts>"
    facts = [("Run", run.run_id), ("Started", _when(run.started)), ("Took", _took(run))]
    code = "none: the run was killed" if run.exit_code is None else str(run.exit_code)
    facts += [("Exit status", code)]
    yield from (f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in facts)
    yield "</dl></header>"


def _map(run: PageRun, nodes: Sequence[PageNode]) -> Iterator[str]:
    """Tiles rather than a table: they flow into whatever width there is."""
    full = max(
        (g.memory_total_mib or g.memory_used_mib or 0 for n in nodes for g in n.gpus), default=0
    )
    both = run.command == "reset" and not run.dry_run
    yield f"<section><h2>GPU memory{', before and after' if both else ''}</h2>"
    yield "<p class=legend><svg class=strip viewBox='0 0 14 14' width=14 height=14><rect class=zero"
    yield " x=1 y=1 width=12 height=12 rx=2 /></svg> 0 MiB"
    for shade in ("0.30", "0.65", "1"):
        yield "<svg class=strip viewBox='0 0 14 14' width=14 height=14><rect class=used"
        yield f" fill-opacity={shade} x=1 y=1 width=12 height=12 rx=2 /></svg>"
    yield " share of the GPU's memory <svg class=strip viewBox='0 0 14 14' width=14 height=14>"
    yield "<rect class=odd x=1 y=1 width=12 height=12 rx=2 /><text x=7 y=10.5>?</text></svg>"
    yield " not readable</p><div class=map>"
    place = {id(node): number for number, node in enumerate(nodes)}
    for node in run.nodes:
        where = f"#n{place[id(node)]}"
        yield f'<a class="tile {tone(node.verdict)}" href="{where}"><b>{html(node.host)}</b>'
        yield f"<em>{html(node.verdict.value)}</em>"
        if not node.gpus:
            yield "<span class=none>no reading</span></a>"
            continue
        earlier = both and any(gpu.memory_before_mib is not None for gpu in node.gpus)
        if earlier:
            yield strip(node.gpus, full, before=True)
        yield strip(node.gpus, full, before=False) + "</a>"
    yield "</div></section>"


def _timeline(nodes: Sequence[PageNode]) -> Iterator[str]:
    timed = [(n, node) for n, node in enumerate(nodes) if node.timeline]
    if not timed:
        return
    slow = sorted(timed, key=lambda pair: (pair[1].verdict in WELL, -pair[1].elapsed_s))
    scale = max(0.001, *(node.elapsed_s for _, node in timed))
    used = {moment.phase for _, node in timed for moment in node.timeline}
    yield "<section><h2>What took how long</h2><p class=legend>"
    for phase, told in PHASES.items():
        if phase in used:
            yield f"<i class='key {phase}'></i> {told} "
    yield f"</p><div class=times><div class=axis><span>0 s</span><span>{scale / 2:.1f} s</span>"
    yield f"<span>{scale:.1f} s</span></div>"
    rows = [
        f'<div class=time><a href="#n{n}">{html(node.host)}</a>'
        f"{bars(node.timeline, node.elapsed_s, scale)}<span>{node.elapsed_s:.1f} s</span></div>"
        for n, node in slow
    ]
    yield from rows[:_TIMELINES]
    if rows[_TIMELINES:]:
        yield f"<details><summary>{len(rows) - _TIMELINES} more nodes</summary>"
        yield from rows[_TIMELINES:]
        yield "</details>"
    yield "</div></section>"


def _nodes(title: str, run: PageRun, nodes: Sequence[PageNode], *, well: bool) -> Iterator[str]:
    """Whoever needs a look stands open; the others a click away, and open on paper."""
    shown = [(n, node) for n, node in enumerate(nodes) if (node.verdict in WELL) is well]
    if shown:
        yield f"<section><h2>{title}</h2>"
        for number, node in shown:
            yield from article(number, node, run, is_open=not well or len(nodes) == 1)
        yield "</section>"


def _when(text: str) -> str:
    return text[:19].replace("T", " ") + " UTC" if text.endswith("Z") else text


def _took(run: PageRun) -> str:
    try:
        begun, ended = (
            datetime.fromisoformat((text or "").replace("Z", "+00:00"))
            for text in (run.started, run.finished)
        )
        return f"{(ended - begun).total_seconds():.1f} s"
    except (ValueError, TypeError):
        return "not known"
