"""`gpufleet merge`: several runs as one report with one exit status; connects to nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.options import Inventory, Json, NoColor, Quiet, Verbose
from gpufleet.cli.showing import View, show
from gpufleet.cli.streams import warn
from gpufleet.errors import UsageError
from gpufleet.masking import printable

if TYPE_CHECKING:
    from gpufleet.merging import Part

_TOLD = 8
"""Missing shards that are named; what comes after is counted."""


def merge(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="What --json or --jsonl wrote, or - for standard input"
        ),
    ],
    hosts: Annotated[
        str | None,
        typer.Option(
            "-H",
            "--hosts",
            metavar="SELECTION",
            help="Nodes that have to be in it: those in no file are NOT STARTED",
        ),
    ] = None,
    inventory: Inventory = None,
    allow_skipped: Annotated[
        bool, typer.Option("--allow-skipped", help="Exit 0 although nodes were skipped")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Several runs as one report with one exit status.

    \b
    gpufleet reset -H pool --shard 1/2 --json > 1.json     here, and 2/2 elsewhere
    gpufleet merge -H pool 1.json 2.json
    """
    from gpufleet.merging import merge as merged_report  # noqa: PLC0415  # only real work pays
    from gpufleet.merging import merged_exit_code, with_absent  # noqa: PLC0415

    report = merged_report(_parts(files))
    if hosts is not None:
        from gpufleet.cli.selecting import selected  # noqa: PLC0415  # as above

        _, specs = selected(inventory, hosts, None, None, {}, quiet=quiet)
        report = with_absent(report, {spec.name: spec.access.address for spec in specs})
    for line in report.missing[:_TOLD]:
        warn(f"shard {line} is in no file")
    if len(report.missing) > _TOLD:
        warn(f"{len(report.missing) - _TOLD} more shards are in no file")
    exit_code = merged_exit_code(report, allow_skipped=allow_skipped)
    return show(report, exit_code, View(json, quiet, verbose, no_color))


def _parts(files: list[str]) -> list[Part]:
    """Of all files; all that is wrong with them at once."""
    from gpufleet.merging import read_parts  # noqa: PLC0415  # as above

    if files.count("-") > 1:
        raise UsageError("-: standard input can be read once only")
    parts: list[Part] = []
    problems: list[str] = []
    for file in files:
        try:
            parts += read_parts(_read(file), file)
        except UsageError as error:  # noqa: PERF203  # a handful of files
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))
    return parts


def _read(file: str) -> str:
    try:
        if file == "-":
            if sys.stdin is None:
                raise UsageError("-: standard input is closed")
            return sys.stdin.buffer.read().decode("utf-8-sig")
        return Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{printable(file)}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{printable(file)}: not UTF-8 text: not what gpufleet wrote") from error
    except ValueError as error:  # a name with a NUL in it
        raise UsageError(f"{printable(file)}: no file's name") from error
