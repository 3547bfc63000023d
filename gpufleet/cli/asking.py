"""The question before a reset: on a terminal, once, after a look at what would be killed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from gpufleet.cli.streams import is_terminal, note
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.inventory import Fleet
    from gpufleet.model import RunReport
    from gpufleet.policy import NodeSpec
    from gpufleet.run import Engine, Progress


def confirm(
    fleet: Fleet,
    specs: Sequence[NodeSpec],
    hosts: str,
    yes: bool,
    parallel: int,
    engine: Engine,
    progress: Progress,
) -> RunReport | None:
    """What a person has seen and agreed to, or None where nobody is asked.

    Without a terminal nothing is asked, and only `all` needs a word more. Where nothing would be
    killed there is nothing to ask: the proof goes on. Raises UsageError after a no.
    """
    if yes:
        return None
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        if fleet.mentions_all(hosts):
            raise UsageError("--hosts all without a terminal needs --yes")
        return None
    from gpufleet import run  # noqa: PLC0415  # only real work pays for these imports
    from gpufleet.inventory import fold  # noqa: PLC0415
    from gpufleet.render.question import (  # noqa: PLC0415
        may_escalate,
        question_text,
        runs_hooks,
        will_act,
    )

    note(f"Looking at {len(specs)} node{'s' if len(specs) > 1 else ''}; nothing is touched yet …")
    seen = run.reset(
        specs,
        selection=hosts,
        dry_run=True,
        parallel=parallel,
        engine=engine,
        progress=run.Progress(on_note=progress.on_note, ask_secret=progress.ask_secret),
    )
    if seen.interrupted_by is not None:
        note("gpufleet: interrupted: nothing done")
        raise typer.Exit(128 + seen.interrupted_by)
    now = datetime.now().astimezone()
    escalate = {spec.name: spec.policy.escalate for spec in specs}
    note(question_text(seen, fold, now, str(fleet.path), escalate).rstrip("\n"))
    climbs = any(may_escalate(node, escalate[node.host]) for node in seen.nodes)
    if not climbs and not any(will_act(node) or runs_hooks(node) for node in seen.nodes):
        note("Nothing to kill: going on to prove it.")
        return seen
    try:
        what = "Kill these processes, and escalate as told" if climbs else "Kill these processes"
        agreed = _answered_yes(f"{what}? [y/N] ")
    except KeyboardInterrupt:
        note("\ngpufleet: interrupted: nothing done")
        raise
    if not agreed:
        raise UsageError("not confirmed: nothing done")
    return seen


def _answered_yes(question: str) -> bool:
    """Only what is typed after the question counts: an Enter too many during the look doesn't."""
    import termios  # noqa: PLC0415  # only where a terminal is

    with contextlib.suppress(termios.error, OSError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    try:
        print(question, end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    except OSError:  # the terminal went away
        return False
    return answer.strip().lower() in {"y", "yes"}
