"""What a run shows while it goes and when it has ended."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import typer

from gpufleet.cli.streams import ink_for, is_terminal, note, warn, write
from gpufleet.errors import UsageError
from gpufleet.masking import printable
from gpufleet.records import dataclass

if TYPE_CHECKING:
    from gpufleet.model import NodeReport, RunReport
    from gpufleet.policy import NodeSpec
    from gpufleet.render.events import Events
    from gpufleet.run import Progress


@dataclass(frozen=True)
class View:
    """How a result is printed, and what is seen of it before."""

    json: bool = False
    quiet: bool = False
    verbose: int = 0
    no_color: bool = False
    jsonl: bool = False
    sort: str = "name"
    only: Sequence[str] = ()
    shard: str = ""
    """The part of the selection that this run is, as given: `2/8`."""
    events: list[Events] = field(default_factory=list, compare=False)
    """The one that `watching` began, for `show` to end."""


@contextlib.contextmanager
def watching(
    view: View, specs: Sequence[NodeSpec], command: str, selection: str, *, dry_run: bool = False
) -> Iterator[Progress]:
    """What a run tells while it goes: the live view on a terminal's stderr, events with --jsonl;
    retries as notes with -v where neither is."""
    from gpufleet.run import Progress  # noqa: PLC0415  # only real work pays for these imports

    ask = _passphrase if is_terminal(sys.stderr) and is_terminal(sys.stdin) else None
    if view.json and view.jsonl:
        raise UsageError("--json and --jsonl say the same in two forms: give one of them")
    if view.jsonl:
        from gpufleet.render.events import Events  # noqa: PLC0415  # as above

        events = Events(_put, command, dry_run=dry_run)
        view.events.append(events)
        events.start(selection, len(specs), view.shard)
        yield Progress(events.on_event, events.on_report, warn, ask)
    elif view.quiet:
        yield Progress(ask_secret=ask)
    elif not is_terminal(sys.stderr):
        yield Progress(_tell_retries if view.verbose else _ignore, on_note=warn)
    elif view.verbose > 1 or os.environ.get("TERM", "") in {"", "dumb"}:  # -vv: lines of its own
        yield Progress(_tell_retries, _line_by_line(len(specs)), warn, ask)
    else:
        from gpufleet.render.board import Board  # noqa: PLC0415  # as above
        from gpufleet.render.live import live  # noqa: PLC0415

        board = Board({spec.name: spec.policy.gpus for spec in specs})
        keep = not is_terminal(sys.stdout)
        ink = ink_for(sys.stderr, no_color=view.no_color)
        with live(board, sys.stderr, ink, keep=keep) as shown:
            yield Progress(shown.on_event, shown.on_report, shown.over(warn), ask)


def _ignore(host: str, phase: str, detail: str) -> None:
    """Nobody watches."""


def _tell_retries(host: str, phase: str, detail: str) -> None:
    if phase == "retry":
        note(printable(f"{host}: {detail}"))


def _passphrase(prompt: str) -> str:
    """Asked on the terminal itself, not echoed, whatever standard output is."""
    import getpass  # noqa: PLC0415  # only when there is something to ask

    return getpass.getpass(printable(prompt))


def _line_by_line(total: int) -> Callable[[NodeReport], None]:
    """For a terminal that can't move its cursor: finished nodes, one line each."""
    from gpufleet.render.text import node_line  # noqa: PLC0415  # as above

    done: list[str] = []

    def on_report(report: NodeReport) -> None:
        done.append(report.host)
        if total > 1:
            note(node_line(report, len(done), total))

    return on_report


def _put(line: str) -> None:
    if sys.stdout is not None:
        sys.stdout.write(line)
        sys.stdout.flush()


def show(report: RunReport, exit_code: int, view: View) -> int:
    """Print the result and return the exit status."""
    report = replace(report, shard=view.shard)
    if view.events:
        try:
            view.events.pop().finish(report, exit_code)
        except BrokenPipeError:
            write("")  # the one place that knows how to end a run whose reader is gone
            raise typer.Exit(_READER_GONE) from None
    elif view.json:
        from gpufleet.render.document import run_pieces  # noqa: PLC0415  # as above

        for piece in run_pieces(report, exit_code):
            write(piece)
        write("\n")
    else:
        write(result_text(report, view))
    return exit_code


_READER_GONE = 128 + 13
"""As a shell says it of a command that SIGPIPE ended."""


def result_text(report: RunReport, view: View, height: int = 0) -> str:
    """The table of a run, or the map of a status."""
    options: dict[str, Any] = {
        "ink": ink_for(sys.stdout, no_color=view.no_color),
        "verbose": view.verbose,
        "quiet": view.quiet,
    }
    if report.command == "status":
        from gpufleet.render.heat import status_text  # noqa: PLC0415  # as above

        return status_text(report, sort=view.sort, only=view.only, height=height, **options)
    from gpufleet.render.text import run_text  # noqa: PLC0415

    return run_text(report, **options)
