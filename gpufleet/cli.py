"""Commands and options. Reads the command line, calls the API, prints what `render/` made of it.

The only module that decides on an exit status. Results go to standard output, everything else to
standard error. Nothing is asked where no terminal is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer
from typer.exceptions import Abort, TyperException

from gpufleet import __version__
from gpufleet.errors import GpufleetError, UsageError
from gpufleet.masking import printable

if TYPE_CHECKING:
    from gpufleet.inventory import Fleet
    from gpufleet.model import NodeReport, RunReport
    from gpufleet.policy import NodeSpec
    from gpufleet.run import Progress

USAGE_ERROR = 2
NOT_TOLD = 3
"""A result that nobody got is as good as none."""

app = typer.Typer(
    help="Bring GPU nodes back to a proven clean slate over SSH.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Inventory = Annotated[
    Path | None,
    typer.Option(
        "-i",
        "--inventory",
        metavar="FILE",
        help="fleet.yaml; else $GPUFLEET_INVENTORY, ./fleet.yaml, the user's config folder, "
        "/etc/gpufleet/fleet.yaml",
    ),
]
Hosts = Annotated[
    str,
    typer.Option(
        "-H",
        "--hosts",
        metavar="SELECTION",
        help="Host, group, gpu[01-16], comma list, all; also ClusterShell's ! and &, quoted",
    ),
]
AnyHosts = Annotated[
    str, typer.Option("-H", "--hosts", metavar="SELECTION", help="What to show; all by default")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("-x", "--exclude", metavar="SELECTION", help="Leave these out (repeatable)"),
]
Limit = Annotated[
    str | None, typer.Option("--limit", metavar="SELECTION", help="Only those that are in both")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Only nodes that failed or carry a warning")
]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="List killed, spared and each GPU")
]
Parallel = Annotated[int, typer.Option("--parallel", metavar="N", help="Nodes at once")]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", metavar="DURATION", help="Per node, from its own start, like 300s"),
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours (or set NO_COLOR)")]


@dataclass(frozen=True)
class View:
    """How a result is printed."""

    json: bool
    quiet: bool
    verbose: int
    no_color: bool


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; what went wrong is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper
    try:
        result = app(list(arguments), prog_name="gpufleet", standalone_mode=False)
    except TyperException as error:
        return _refuse(error.format_message())
    except GpufleetError as error:
        return _refuse(str(error))
    except (Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except OSError as error:
        if sys.stdout is not None:
            sys.stdout = _nowhere()
        _note(f"gpufleet: the result could not be written: {error.strerror}")
        return NOT_TOLD
    return int(result or 0)


def _refuse(message: str) -> int:
    for line in message.splitlines() or [""]:
        _note(f"gpufleet: {printable(line)}")
    return USAGE_ERROR


def _note(line: str) -> None:
    if sys.stderr is not None:
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:  # a full disk takes the note, never the verdict
            sys.stderr = _nowhere()


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
) -> int:
    if version:
        _print(f"gpufleet {__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        _note(context.get_help())
        return USAGE_ERROR
    return 0


@app.command()
def reset(
    hosts: Hosts,
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look and plan; send no signal")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Ask nothing")] = False,
    grace: Annotated[
        str | None,
        typer.Option("--grace", metavar="DURATION", help="TERM first, KILL after this"),
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option("--tolerance", metavar="MIB", help="Memory that counts as free")
    ] = None,
    attempts: Annotated[
        str | None, typer.Option("--attempts", metavar="N", help="Kill so often at most")
    ] = None,
    settle: Annotated[
        str | None,
        typer.Option("--settle", metavar="DURATION", help="Between the two clean samples"),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option("--jobs", metavar="spare|kill", help="Nodes with a Slurm job or a pod"),
    ] = None,
    match_workload: Annotated[
        list[str] | None,
        typer.Option(
            "--match-workload",
            metavar="REGEX",
            help="What the workload is, in place of `workload` (repeatable)",
        ),
    ] = None,
    protect: Annotated[
        list[str] | None,
        typer.Option(
            "--protect",
            metavar="NAME",
            help="Never kill this program, unit:NAME or user:NAME (repeatable)",
        ),
    ] = None,
    timeout: Timeout = None,
    parallel: Parallel = 64,
    allow_skipped: Annotated[
        bool, typer.Option("--allow-skipped", help="Exit 0 although nodes were skipped")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Kill the workload, prove that every GPU is free, and say so."""
    settings: dict[str, str | list[str] | None] = {
        "grace": grace,
        "tolerance": tolerance,
        "attempts": attempts,
        "settle": settle,
        "jobs": jobs,
        "workload": match_workload,
        "protect": protect,
        "timeout": timeout,
    }
    fleet, specs = _selected(inventory, hosts, exclude, limit, settings)
    if not dry_run:
        _confirm(fleet, specs, hosts, yes)
    from gpufleet import run  # noqa: PLC0415  # only real work pays for these imports

    view = View(json, quiet, verbose, no_color)
    report = run.reset(
        specs,
        selection=hosts,
        dry_run=dry_run,
        parallel=parallel,
        progress=_progress(view, len(specs)),
    )
    return _show(report, report.exit_code(allow_skipped=allow_skipped), view)


@app.command()
def status(
    hosts: Hosts,
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    timeout: Timeout = None,
    parallel: Parallel = 64,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Memory, holders and health of each node; changes nothing."""
    view = View(json, quiet, verbose, no_color)
    _, specs = _selected(inventory, hosts, exclude, limit, {"timeout": timeout})
    return _inspect("status", specs, hosts, parallel, view)


@app.command()
def check(
    hosts: Hosts,
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    timeout: Timeout = None,
    parallel: Parallel = 64,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Would a reset work here? Login, privilege, tools, GPUs."""
    view = View(json, quiet, verbose, no_color)
    _, specs = _selected(inventory, hosts, exclude, limit, {"timeout": timeout})
    return _inspect("check", specs, hosts, parallel, view)


@app.command()
def hosts(
    hosts: AnyHosts = "all",
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    json: Json = False,
) -> int:
    """What a selection means; connects to nothing."""
    from gpufleet.render.document import hosts_document  # noqa: PLC0415  # as above
    from gpufleet.render.text import hosts_text  # noqa: PLC0415

    fleet, specs = _selected(inventory, hosts, exclude, limit, {})
    groups: dict[str, list[str]] = {}
    for group, members in fleet.groups().items():
        for name in members:
            groups.setdefault(name, []).append(group)
    text = hosts_document(specs, hosts, groups) + "\n" if json else hosts_text(specs, groups)
    _print(text)
    return 0


def _inspect(
    command: Literal["status", "check"],
    specs: list[NodeSpec],
    hosts: str,
    parallel: int,
    view: View,
) -> int:
    from gpufleet import run  # noqa: PLC0415  # as above

    look = run.status if command == "status" else run.check
    report = look(specs, selection=hosts, parallel=parallel, progress=_progress(view, len(specs)))
    return _show(report, report.exit_code(), view)


def _selected(
    inventory: Path | None,
    hosts: str,
    exclude: list[str] | None,
    limit: str | None,
    settings: Mapping[str, str | list[str] | None],
) -> tuple[Fleet, list[NodeSpec]]:
    """The fleet and the selected nodes, with the command line's settings over those of the file."""
    from gpufleet.inventory import find_inventory, load_fleet, parse_settings  # noqa: PLC0415

    overrides = parse_settings(settings)
    fleet = load_fleet(find_inventory(inventory))
    return fleet, fleet.select(hosts, exclude=exclude or (), limit=limit, overrides=overrides)


def _confirm(fleet: Fleet, specs: Sequence[NodeSpec], hosts: str, yes: bool) -> None:
    """Ask once on a terminal. Without one nothing is asked, and only `all` needs a word more."""
    if yes:
        return
    from gpufleet.inventory import fold  # noqa: PLC0415  # as above

    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        if fleet.mentions_all(hosts):
            raise UsageError("--hosts all without a terminal needs --yes")
        return
    names = fold([spec.name for spec in specs])
    print(f"Reset {len(specs)} nodes of {fleet.path}: {names}", file=sys.stderr)
    print("Every workload process on them is killed. Go on? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError("not confirmed, nothing was done")


def _progress(view: View, total: int) -> Progress:
    """Finished nodes, one line each, on a terminal's stderr; retries there too, or with -v."""
    from gpufleet.render.text import node_line  # noqa: PLC0415  # as above
    from gpufleet.run import Progress  # noqa: PLC0415

    watched = _is_terminal(sys.stderr)
    if view.quiet or not (watched or view.verbose):
        return Progress()
    done: list[str] = []

    def on_report(report: NodeReport) -> None:
        done.append(report.host)
        if watched and total > 1:
            _note(node_line(report, len(done), total))

    def on_event(host: str, phase: str, detail: str) -> None:
        if phase == "retry":
            _note(printable(f"{host}: {detail}"))

    return Progress(on_event, on_report)


def _show(report: RunReport, exit_code: int, view: View) -> int:
    from gpufleet.render.document import run_document  # noqa: PLC0415  # as above
    from gpufleet.render.text import run_text  # noqa: PLC0415

    if view.json:
        _print(run_document(report, exit_code) + "\n")
    else:
        colour = (
            _is_terminal(sys.stdout)
            and not view.no_color
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )
        _print(run_text(report, colour=colour, verbose=view.verbose, quiet=view.quiet))
    return exit_code


def _print(text: str) -> None:
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away: the result is lost to it, not the run
        sys.stdout = _nowhere()
        raise typer.Exit(128 + signal.SIGPIPE) from None


def _nowhere() -> TextIO:
    """In place of a stream that can't be written: it would be flushed once more at exit."""
    return open(os.devnull, "w")  # noqa: PTH123  # closed by the exit


def _is_terminal(stream: TextIO | None) -> bool:
    """False also for a stream that is closed or absent, as under cron."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
