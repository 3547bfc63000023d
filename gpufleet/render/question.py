"""What a person is shown before a reset: whose processes would die, where, how old. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from gpufleet.masking import printable
from gpufleet.model import NodeReport, ProcessLine, RunReport, Verdict

SHOWN = 20
"""Lines of one kind; what comes after is counted."""

Fold = Callable[[Sequence[str]], str]
"""gpu01, gpu02 -> gpu[01-02]"""


def question_text(
    report: RunReport,
    fold: Fold,
    now: datetime,
    inventory: str = "",
    escalate: Mapping[str, str] | None = None,
) -> str:
    """The plan of a dry run, by owner, and the nodes on which nothing will be killed. `escalate`: what
    each host's settings allow.

    16 nodes: 160 processes of root since Tuesday; 8 of alice in slurm job 4711 on gpu07 since 14:02
    """
    names = fold([node.host for node in report.nodes])
    of = f" of {inventory}" if inventory else ""
    lines = [f"Reset {_count(len(report.nodes), 'node')}{of}: {names}"]
    acted = [node for node in report.nodes if will_act(node)]
    groups = list(_groups(acted, fold, now))
    lines += [f"  kill {group}" for group in groups[:SHOWN]]
    if len(groups) > SHOWN:
        lines.append(f"  kill processes of {len(groups) - SHOWN} more owners")
    lines += _stops(acted, fold)
    lines += _others(report.nodes, fold)
    lines += _hooks(acted, fold)
    lines += _rungs(report.nodes, fold, escalate or {})
    return "".join(f"{printable(line)}\n" for line in lines)


def will_act(node: NodeReport) -> bool:
    """Does a reset of this node kill anything, as far as its dry run shows?"""
    return bool(node.planned) and node.verdict in {Verdict.DIRTY, Verdict.BROKEN, Verdict.UNKNOWN}


def may_escalate(node: NodeReport, allowed: str) -> bool:
    """Could more than killing follow on this node? Only one that isn't clean now is asked about."""
    told = {Verdict.DIRTY, Verdict.BROKEN, Verdict.UNKNOWN}
    return allowed not in {"", "none"} and node.verdict in told


def runs_hooks(node: NodeReport) -> bool:
    return any(warning.startswith("would run ") for warning in node.warnings)


def _groups(nodes: Sequence[NodeReport], fold: Fold, now: datetime) -> Iterator[str]:
    """Most processes first: `160 processes of root on gpu[01-16], since Tuesday`."""
    found: dict[tuple[str, str], list[tuple[str, ProcessLine]]] = {}
    for node in nodes:
        for line in node.planned:
            found.setdefault((line.user, line.owner), []).append((node.host, line))
    # Units and containers differ from node to node: those of one user are told together.
    merged: dict[tuple[str, str], list[tuple[str, ProcessLine]]] = {}
    for (user, owner), members in found.items():
        job = owner if owner.startswith("slurm job ") else ""
        merged.setdefault((user, job), []).extend(members)
    for (user, job), members in sorted(merged.items(), key=lambda item: -len(item[1])):
        hosts = list(dict.fromkeys(host for host, _ in members))
        owner = f" in {job}" if job else _units([line for _, line in members])
        ages = [line.age_s for _, line in members if line.age_s is not None]
        since = f", since {_when(now, max(ages))}" if ages else ""
        yield f"{_count(len(members), 'process')} of {user}{owner} on {fold(hosts)}{since}"


def _units(lines: Sequence[ProcessLine]) -> str:
    """` (8 in sglang.service)`, the most frequent units and containers."""
    owners = Counter(line.owner for line in lines if line.owner)
    parts = [f"{count} in {owner}" for owner, count in owners.most_common(2)]
    return f" ({', '.join(parts)}{', …' if len(owners) > 2 else ''})" if parts else ""


def _when(now: datetime, age_s: int) -> str:
    """As people say it: 14:02 today, Tuesday within a week, else the date."""
    then = now - timedelta(seconds=age_s)
    days = (now.date() - then.date()).days
    if days == 0:
        return f"{then:%H:%M}"
    return f"{then:%A}" if days < 7 else f"{then:%Y-%m-%d}"


def _others(nodes: Sequence[NodeReport], fold: Fold) -> list[str]:
    """Nodes on which nothing is killed, by verdict and reason."""
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        if will_act(node):
            continue
        reason = f" ({node.reason[:160]})" if node.reason else ""
        what = "nothing to kill" if node.verdict is Verdict.CLEAN else f"{node.verdict}{reason}"
        kinds.setdefault(what, []).append(node.host)
    lines = [f"  {what}: {fold(hosts)}" for what, hosts in kinds.items()]
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"  … {len(lines) - SHOWN} more"]


def _stops(nodes: Sequence[NodeReport], fold: Fold) -> list[str]:
    """What would be stopped by its owner first: `stop sglang.service on gpu[01-16]`."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for stop in node.stopped:
            if not stop.stopped:
                found.setdefault(stop.owner, []).append(node.host)
    lines = [f"  stop {owner} on {fold(hosts)}" for owner, hosts in found.items()]
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"  stop {len(lines) - SHOWN} more"]


def _rungs(nodes: Sequence[NodeReport], fold: Fold, escalate: Mapping[str, str]) -> list[str]:
    """`if killing is not enough, GPU reset and then reboot: gpu[01-16]`, and what is due already."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        allowed = escalate.get(node.host, "")
        if may_escalate(node, allowed):
            for one in node.escalations:
                if not one.done:
                    found.setdefault(f"{one.rung}: {one.why[:120]}", []).append(node.host)
            last = "GPU reset and then reboot" if allowed == "reboot" else "GPU reset"
            found.setdefault(f"if killing is not enough, {last}", []).append(node.host)
    lines = [f"  {what}: {fold(hosts)}" for what, hosts in found.items()]
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"  … {len(lines) - SHOWN} more"]


def _hooks(nodes: Sequence[NodeReport], fold: Fold) -> list[str]:
    commands: dict[str, list[str]] = {}
    for node in nodes:
        for warning in node.warnings:
            if warning.startswith("would run "):
                commands.setdefault(warning.removeprefix("would "), []).append(node.host)
    return [f"  {command} ({fold(hosts)})" for command, hosts in commands.items()]


def _count(number: int, word: str) -> str:
    plural = "es" if word.endswith("s") else "s"
    return f"1 {word}" if number == 1 else f"{number} {word}{plural}"
