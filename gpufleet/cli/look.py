"""`gpufleet status` and `gpufleet check`: they change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpufleet.cli.failed import nothing_to_do
from gpufleet.cli.logfile import logged, logging_to
from gpufleet.cli.options import (
    EngineName,
    Exclude,
    Hosts,
    Inventory,
    Json,
    JsonLines,
    Limit,
    LogFile,
    NoColor,
    Parallel,
    Processes,
    Quiet,
    Scheduler,
    Shard,
    Timeout,
    Verbose,
    engine_of,
)
from gpufleet.cli.selecting import selected
from gpufleet.cli.showing import View, show, watching
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.model import RunReport
    from gpufleet.policy import NodeSpec
    from gpufleet.run import Engine


def status(
    hosts: Hosts,
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    shard: Shard = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="name|memory|verdict", help="Order of the nodes")
    ] = "name",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="VERDICT",
            help="Show only idle, busy, broken, unknown or unreachable nodes (repeatable)",
        ),
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option("--watch", metavar="DURATION", help="Look again after this, until q or ^C"),
    ] = None,
    timeout: Timeout = None,
    parallel: Parallel = 64,
    processes: Processes = None,
    engine: EngineName = "local",
    scheduler: Scheduler = None,
    log_file: LogFile = None,
    json: Json = False,
    jsonl: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Memory, holders and health of each node; changes nothing.

    \b
    gpufleet status -H inference-pool --watch 5s
    gpufleet status -H all --only busy --sort memory
    """
    from gpufleet.render.heat import ONLIES, SORTS  # noqa: PLC0415  # as above

    view = View(
        json,
        quiet,
        verbose,
        no_color,
        jsonl,
        _word("--sort", sort, SORTS),
        [_word("--only", word, ONLIES) for word in only or []],
        shard or "",
    )
    settings = {"timeout": timeout}
    _, specs = selected(inventory, hosts, exclude, limit, settings, shard=shard, quiet=quiet)
    if not specs:
        return nothing_to_do("status", hosts, view)
    every_s = None
    if watch is not None:
        from gpufleet.cli.watch import watch_pause  # noqa: PLC0415  # as above

        every_s = watch_pause(watch, view)
    where = engine_of(engine, scheduler, processes, len(specs))
    first = _look("status", specs, hosts, parallel, where, log_file, view)
    if every_s is None or first.interrupted_by is not None:
        return show(first, first.exit_code(), view)
    from gpufleet.cli.watch import watch_status  # noqa: PLC0415  # as above
    from gpufleet.run import status as look  # noqa: PLC0415

    def again() -> RunReport:
        return look(specs, selection=hosts, parallel=parallel, engine=where)

    return watch_status(first, again, every_s, view)


def check(
    hosts: Hosts,
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    shard: Shard = None,
    timeout: Timeout = None,
    parallel: Parallel = 64,
    processes: Processes = None,
    engine: EngineName = "local",
    scheduler: Scheduler = None,
    log_file: LogFile = None,
    json: Json = False,
    jsonl: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Would a reset work? Login, root, tools, GPUs; changes nothing."""
    view = View(json, quiet, verbose, no_color, jsonl, shard=shard or "")
    settings = {"timeout": timeout}
    _, specs = selected(inventory, hosts, exclude, limit, settings, shard=shard, quiet=quiet)
    if not specs:
        return nothing_to_do("check", hosts, view)
    where = engine_of(engine, scheduler, processes, len(specs))
    report = _look("check", specs, hosts, parallel, where, log_file, view)
    return show(report, report.exit_code(), view)


def _word(option: str, read: str, known: tuple[str, ...]) -> str:
    if read.lower() in known:
        return read.lower()
    from gpufleet.inventory.problems import show as quoted  # noqa: PLC0415  # as above
    from gpufleet.inventory.problems import suggest  # noqa: PLC0415

    near = suggest(read, known) or f": {', '.join(known)}"
    raise UsageError(f"{option} {quoted(read)}: not one of its words{near}")


def _look(
    command: Literal["status", "check"],
    specs: list[NodeSpec],
    hosts: str,
    parallel: int,
    engine: Engine,
    log_file: Path | None,
    view: View,
) -> RunReport:
    from gpufleet import run  # noqa: PLC0415  # as above

    look = run.status if command == "status" else run.check
    run_id = run.new_run_id()
    with logging_to(log_file, run_id, view.verbose), watching(view, specs, command, hosts) as told:
        return look(
            specs,
            selection=hosts,
            parallel=parallel,
            progress=logged(told),
            run_id=run_id,
            engine=engine,
        )
