"""What a run shows while it goes and when it has ended."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufleet.cli.streams import is_terminal, note, write
from gpufleet.masking import printable

if TYPE_CHECKING:
    from gpufleet.model import NodeReport, RunReport
    from gpufleet.run import Progress


@dataclass(frozen=True)
class View:
    """How a result is printed."""

    json: bool
    quiet: bool
    verbose: int
    no_color: bool


def progress(view: View, total: int) -> Progress:
    """Finished nodes, one line each, on a terminal's stderr; retries there too, or with -v."""
    from gpufleet.render.text import node_line  # noqa: PLC0415  # as above
    from gpufleet.run import Progress  # noqa: PLC0415

    watched = is_terminal(sys.stderr)
    ask = _passphrase if watched and is_terminal(sys.stdin) else None
    if view.quiet:
        return Progress(ask_secret=ask)
    if not (watched or view.verbose):
        return Progress(on_note=_warn, ask_secret=ask)
    done: list[str] = []

    def on_report(report: NodeReport) -> None:
        done.append(report.host)
        if watched and total > 1:
            note(node_line(report, len(done), total))

    def on_event(host: str, phase: str, detail: str) -> None:
        if phase == "retry":
            note(printable(f"{host}: {detail}"))

    return Progress(on_event, on_report, _warn, ask)


def _warn(text: str) -> None:
    note(printable(f"gpufleet: warning: {text}"))


def _passphrase(prompt: str) -> str:
    """Asked on the terminal itself, not echoed, whatever standard output is."""
    import getpass  # noqa: PLC0415  # only when there is something to ask

    return getpass.getpass(printable(prompt))


def show(report: RunReport, exit_code: int, view: View) -> int:
    from gpufleet.render.document import run_document  # noqa: PLC0415  # as above
    from gpufleet.render.text import run_text  # noqa: PLC0415

    if view.json:
        write(run_document(report, exit_code) + "\n")
    else:
        colour = (
            is_terminal(sys.stdout)
            and not view.no_color
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )
        write(run_text(report, colour=colour, verbose=view.verbose, quiet=view.quiet))
    return exit_code
