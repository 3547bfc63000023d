"""`gpufleet restore`."""

from __future__ import annotations

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
    Verbose,
    engine_of,
)
from gpufleet.cli.selecting import selected
from gpufleet.cli.showing import View, show, watching


def restore(
    hosts: Hosts,
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    shard: Shard = None,
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
    """Start again what a reset stopped and didn't start.

    \b
    gpufleet restore -H @failed
    """
    view = View(json, quiet, verbose, no_color, jsonl, shard=shard or "")
    _, specs = selected(inventory, hosts, exclude, limit, {}, shard=shard, quiet=quiet)
    if not specs:
        return nothing_to_do("restore", hosts, view)
    from gpufleet import run  # noqa: PLC0415  # only real work pays for these imports

    where = engine_of(engine, scheduler, processes, len(specs))
    run_id = run.new_run_id()
    with logging_to(log_file, run_id, verbose), watching(view, specs, "restore", hosts) as told:
        report = run.restore(
            specs,
            selection=hosts,
            parallel=parallel,
            progress=logged(told),
            run_id=run_id,
            engine=where,
        )
    return show(report, report.exit_code(), view)
