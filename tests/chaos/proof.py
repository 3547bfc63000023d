"""Was a CLEAN proven? Judged from what nvidia-smi was heard to say and from the node's own truth.

The two samples that count are an exec's last two readings of memory. What began after the second of
them began is no error of the product's: it is returned as a race.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .drawing import Round
from .fates import Fate
from .stage import Stage
from .troubles import BAD_HEALTH
from .truth import Call, Snapshot, born_s

SLACK_S = 0.03
"""Uptime and start times are cut to hundredths."""

LAST_S = 1.0
"""What stands in the way for the whole last second (and over the proof) must have been seen."""


@dataclass
class Proof:
    """What speaks against one exec's claim, and what only came after it."""

    wrong: list[str] = field(default_factory=list)
    races: list[str] = field(default_factory=list)


def examine(stage: Stage, truth: Snapshot, since_s: float) -> Proof:
    """The best that any exec since then has to show; the last exec's, when none proves anything."""
    found = [
        _of_exec(stage, truth, calls)
        for calls in truth.record.sessions().values()
        if calls[0].session > 0 and calls[-1].start_s >= since_s - SLACK_S
    ]
    good = [proof for proof in found if not proof.wrong]
    if not stage.drawn.has("second run"):
        good = [proof for proof in found[-1:] if not proof.wrong]
    return (good or found or [Proof(["nvidia-smi was never asked"])])[-1]


def _of_exec(stage: Stage, truth: Snapshot, calls: list[Call]) -> Proof:
    memory = [call for call in calls if call.of_memory]
    if len(memory) < 2:
        return Proof([f"{len(memory)} readings of memory"])
    first, second = memory[-2:]
    proof = Proof()
    proof.wrong.extend(_readings(stage.drawn, first, second))
    proof.wrong.extend(_health(calls, second))
    proof.wrong.extend(_standing_faults(stage, truth, first))
    proof.wrong.extend(_ended_daemons(stage, truth, second))
    _compare(proof, _memory(stage, truth), second)
    _compare(proof, _processes(stage, truth), second)
    _units(proof, stage, truth, second)
    return proof


def _compare(proof: Proof, facts: Iterator[tuple[float, str]], second: Call) -> None:
    for since_s, text in facts:
        seen = since_s < second.start_s - SLACK_S
        what = f"{text}, {second.start_s - since_s:.2f} s before the second sample"
        (proof.wrong if seen else proof.races).append(what)


def _readings(drawn: Round, first: Call, second: Call) -> Iterator[str]:
    for name, call in (("first", first), ("second", second)):
        if not call.said:
            yield f"the {name} reading was never answered"
        elif call.status != "0" or call.stderr or not _is_free(call.stdout, drawn):
            answer = f"{call.stdout!r} {call.stderr!r}"[:300]
            yield f"the {name} reading said {answer}, status {call.status}"
    if first.said and second.start_s - first.end_s < drawn.policy.settle_s - SLACK_S:
        yield f"the two readings are {second.start_s - first.end_s:.2f} s apart"


def _is_free(text: str, drawn: Round) -> bool:
    """Exactly the expected GPUs in order, each a plain number of MiB within the tolerance."""
    lines = text.removesuffix("\n").replace("\r", "").split("\n")
    wanted = range(drawn.policy.gpus)
    if not text.endswith("\n") or len(lines) != len(wanted):
        return False
    for index, row in zip(wanted, lines, strict=True):
        line = ", ".join(row.split(", ")[:2])  # health may stand behind it
        head, number, unit = f"{index}, ", line[3:-4], line[-4:]
        if not line.startswith(head) or unit != " MiB" or not number.isdecimal():
            return False
        if int(number) > drawn.policy.tolerance_mib:
            return False
    return True


def _health(calls: list[Call], second: Call) -> Iterator[str]:
    asked = [call for call in calls if call.of_health and call.start_s >= second.start_s - SLACK_S]
    if not any(call.said and call.status == "0" for call in asked):
        yield "no health query was answered after the second sample"
    for call in asked:
        bad = [text for _, text in BAD_HEALTH if f", {text}" in call.stdout]
        if bad or not call.said:
            yield f"the health query said {bad or 'nothing'}"


def _standing_faults(stage: Stage, truth: Snapshot, first: Call) -> Iterator[str]:
    begin = min(first.start_s, truth.at_s - LAST_S)
    for trouble in stage.drawn.troubles:
        if trouble.bars and (span := stage.active(trouble)):
            since, until = span
            if since < begin - SLACK_S and until > truth.at_s:
                yield f"{trouble} stood all the time"


def _ended_daemons(stage: Stage, truth: Snapshot, second: Call) -> Iterator[str]:
    """A vital daemon that the first look must have seen, and that ended before the second sample.

    With systemd also one whose enabled unit is without a process from before the proof until now.
    """
    own = [call for call in truth.record.calls if call.session > 0]
    first_exec = [call for call in own if call.session == own[0].session]
    seen_s = first_exec[1].start_s if len(first_exec) > 1 else float("inf")
    for deed in stage.deeds:
        name = deed.trouble.name
        if deed.trouble.kind != "daemon" or deed.error or name == "hostengine":
            continue
        before = deed.done_s < second.start_s - SLACK_S
        if deed.begun_s > seen_s and before:
            yield f"{name} ended during the run"
        elif before and stage.drawn.systemd and deed.trouble.value == "dies":
            yield f"{name}'s unit is enabled and dead"


def _memory(stage: Stage, truth: Snapshot) -> Iterator[tuple[float, str]]:
    for gpu in {held.gpu for held in truth.memory}:
        parts = [held for held in truth.memory if held.gpu == gpu]
        if sum(held.mib for held in parts) > stage.drawn.policy.tolerance_mib:
            # Together they are too much since the last of them came, or since one that is by itself.
            alone = [h.since_s for h in parts if h.mib > stage.drawn.policy.tolerance_mib]
            since = min(alone) if alone else max(held.since_s for held in parts)
            yield since, f"GPU {gpu} has {[(h.mib, h.who) for h in parts]}"


def _processes(stage: Stage, truth: Snapshot) -> Iterator[tuple[float, str]]:
    """Living processes that CLEAN excludes: the workload by its fate, and unprotected holders."""
    for process in truth.processes:
        role = stage.cast.get((process.pid, process.start_ticks))
        fate = role.fate if role else stage.families.get(process.args)
        if process.state in "ZX":
            continue
        if fate is Fate.DIE:
            yield born_s(process), f"workload pid {process.pid} {process.args!r} is alive"
        elif fate is None and process.pid in truth.holders:
            yield born_s(process), f"unprotected holder pid {process.pid} {process.args!r}"


def _units(proof: Proof, stage: Stage, truth: Snapshot, second: Call) -> None:
    """Services that systemd was about to start again when it was or should have been asked."""
    if not stage.drawn.systemd:
        return
    asked = [at for at, names in truth.record.units if any("sglang" in name for name in names)]
    for part in stage.drawn.parts:
        for proc, _ in part.rows if part.units else ():
            owner = proc.owner or ""
            lives = [p for p in truth.processes if p.owner == owner and p.state not in "ZX"]
            if not lives:
                gone = any(role.label == proc.label for role in stage.cast.values())
                proof.wrong.extend([f"{owner} is about to be started again"] if gone else [])
            elif not asked or asked[-1] < second.start_s - SLACK_S:
                proof.wrong.append(f"systemctl wasn't asked about {owner} after the second sample")
            elif born_s(lives[0]) > asked[-1] + SLACK_S:
                proof.wrong.append(
                    f"{owner} was about to be started again when systemctl was asked"
                )
