"""`gpufleet report`: a run as one HTML page; connects to nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gpufleet.cli.streams import write
from gpufleet.errors import UsageError
from gpufleet.masking import printable


def report(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE", help="A run's id, a file that --json wrote, or - for standard input"
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE.html",
            help="Where to; gpufleet-RUN.html by default, - for standard output",
        ),
    ] = None,
) -> int:
    """A run as one HTML page, for a ticket or a post-mortem.

    \b
    gpufleet reset -H gpu01 --json | gpufleet report - -o reset.html
    """
    from gpufleet.render.page import run_page  # noqa: PLC0415  # only real work pays for it

    document = _document(run)
    try:
        page = run_page(document)
    except UsageError as error:
        raise UsageError(f"{printable(run)}: {error}") from error
    if output == "-":
        write(page)
        return 0
    name = re.sub(r"[^\w.-]", "_", str(document["run_id"]))[:80]
    path = Path(output) if output else Path(f"gpufleet-{name}.html")
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: can't be written: {error.strerror}") from error
    write(f"{path}\n")
    return 0


def _document(run: str) -> dict[str, Any]:
    """Of a file, of standard input, or of the record of a run."""
    if run == "-" or _is_there(run):
        try:
            if run == "-" and sys.stdin is None:
                raise UsageError("-: standard input is closed")
            text = sys.stdin.read() if run == "-" else Path(run).read_text(encoding="utf-8")
            document = json.loads(text)
        except OSError as error:
            raise UsageError(f"{run}: can't be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{printable(run)}: not a JSON document: {error}"[:300]) from error
        if not isinstance(document, dict):
            raise UsageError(f"{printable(run)}: not the JSON document of a run")
        return document
    if "/" in run or run.endswith((".json", ".jsonl")):
        raise UsageError(f"{printable(run)}: no such file")
    return _recorded(run)


def _is_there(run: str) -> bool:
    """A file, or what a shell's `<(…)` names."""
    try:
        path = Path(run)
        return path.is_file() or path.is_fifo()
    except (OSError, ValueError):  # no name that a file could have
        return False


def _recorded(run: str) -> dict[str, Any]:
    from gpufleet.history import load_run  # noqa: PLC0415  # only this path needs the records

    return load_run(run)
