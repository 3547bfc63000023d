"""One node on a page: verdict, reason, next step, GPUs, and who was killed, spared or is left. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpufleet.model import Verdict
from gpufleet.render.ink import WELL, age
from gpufleet.render.page.escaping import html
from gpufleet.render.page.reading import PageNode, PageProcess, PageRun

_TONES = {
    Verdict.BROKEN: "red",
    Verdict.UNREACHABLE: "red",
    Verdict.UNKNOWN: "violet",
    Verdict.DIRTY: "amber",
    Verdict.SKIPPED: "amber",
    Verdict.NOT_STARTED: "amber",
    Verdict.BUSY: "blue",
}


def tone(verdict: Verdict) -> str:
    return _TONES.get(verdict, "green")


def article(number: int, node: PageNode, run: PageRun, *, is_open: bool) -> Iterator[str]:
    """`number` makes the anchor that the map and the times point to."""
    facts = [node.address if node.address != node.host else ""]
    facts += [f"{node.attempts} attempt{'s' * (node.attempts != 1)}" if node.attempts else ""]
    facts += [_counted(len(node.killed), "would be killed" if run.dry_run else "killed")]
    facts += [_counted(len(node.would_kill), "would be killed"), f"{node.elapsed_s:.1f} s"]
    yield f'<details class="node {tone(node.verdict)}" id=n{number}{" open" * is_open}>'
    yield f"<summary><b>{html(node.host)}</b> <em>{html(node.verdict.value)}</em>"
    yield f"<small>{html(' · '.join(filter(None, facts)))}</small></summary>"
    yield "<div class=inside>"
    if node.reason and node.verdict not in WELL:
        stage = f" <small>(stage {html(node.stage)})</small>" if node.stage else ""
        yield f"<p class=why>{html(node.reason)}{stage}</p>"
    if node.next_step:
        yield f"<div class=next><span>Next step</span><code>{html(node.next_step)}</code></div>"
    yield from (f"<p class=warning>Warning: {html(warning)}</p>" for warning in node.warnings)
    yield from _gpus(node)
    alone = len(run.nodes) == 1
    killed = "Would be killed" if run.dry_run else "Killed"
    yield from _processes("Still there", node.survivors, is_open=True)
    yield from _processes(killed, node.killed, is_open=alone)
    yield from _processes("Would be killed by a reset", node.would_kill, is_open=alone)
    yield from _processes("Spared", node.spared, is_open=alone)
    yield "</div></details>"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count else ""


def _gpus(node: PageNode) -> Iterator[str]:
    """Exact numbers in words that can be copied: `0, 0 MiB`, as nvidia-smi prints them."""
    if not node.gpus:
        return
    yield "<div class=wide><table class=gpus><thead><tr><th>GPU</th>"
    yield from (f"<th>{gpu.index}</th>" for gpu in node.gpus)
    yield "</tr></thead><tbody>"
    if any(gpu.memory_before_mib is not None for gpu in node.gpus):
        yield "<tr><th>before, MiB</th>"
        yield from (f"<td>{_mib(gpu.memory_before_mib, '')}</td>" for gpu in node.gpus)
        yield "</tr>"
    yield "<tr><th>at the end, MiB</th>"
    yield from (f"<td>{_mib(gpu.memory_used_mib, gpu.raw)}</td>" for gpu in node.gpus)
    yield "</tr></tbody></table></div>"


def _mib(mib: int | None, raw: str) -> str:
    return f"{mib:,}" if mib is not None else f"<i>{html(raw or '?')}</i>"


def _processes(title: str, lines: Sequence[PageProcess], *, is_open: bool) -> Iterator[str]:
    if not lines:
        return
    yield f"<details class=who{' open' * is_open}><summary>{title} <small>{len(lines)}</small>"
    yield "</summary><div class=wide><table class=procs><thead>"
    yield "<tr><th>pid</th><th>user</th><th>age</th><th>command</th><th>why</th></tr></thead><tbody>"
    for line in lines:
        signal = f" <small>{html(line.signal)}</small>" if line.signal else ""
        owner = f"<small>{html(line.owner)}</small> " if line.owner else ""
        yield f"<tr><td>{line.pid}{signal}</td><td>{html(line.user)}</td>"
        yield f"<td>{html(age(line.age_s))}</td><td>{owner}<code>{html(line.command)}</code></td>"
        yield f"<td><small>{html(line.rule)}: {html(line.why)}</small></td></tr>"
    yield "</tbody></table></div></details>"
