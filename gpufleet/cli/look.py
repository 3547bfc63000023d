"""`gpufleet status` and `gpufleet check`: they change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpufleet.cli.failed import nothing_failed
from gpufleet.cli.logfile import logged, logging_to
from gpufleet.cli.options import (
    Exclude,
    Hosts,
    Inventory,
    Json,
    Limit,
    LogFile,
    NoColor,
    Parallel,
    Quiet,
    Timeout,
    Verbose,
)
from gpufleet.cli.selecting import selected
from gpufleet.cli.showing import View, progress, show

if TYPE_CHECKING:
    from gpufleet.policy import NodeSpec


def status(
    hosts: Hosts,
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    timeout: Timeout = None,
    parallel: Parallel = 64,
    log_file: LogFile = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Memory, holders and health of each node; changes nothing."""
    view = View(json, quiet, verbose, no_color)
    settings = {"timeout": timeout}
    _, specs = selected(inventory, hosts, exclude, limit, settings, quiet=quiet)
    return _inspect("status", specs, hosts, parallel, log_file, view)


def check(
    hosts: Hosts,
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    timeout: Timeout = None,
    parallel: Parallel = 64,
    log_file: LogFile = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Would a reset work here? Login, privilege, tools, GPUs."""
    view = View(json, quiet, verbose, no_color)
    settings = {"timeout": timeout}
    _, specs = selected(inventory, hosts, exclude, limit, settings, quiet=quiet)
    return _inspect("check", specs, hosts, parallel, log_file, view)


def _inspect(
    command: Literal["status", "check"],
    specs: list[NodeSpec],
    hosts: str,
    parallel: int,
    log_file: Path | None,
    view: View,
) -> int:
    if not specs:
        return nothing_failed(command, hosts, view)
    from gpufleet import run  # noqa: PLC0415  # as above

    look = run.status if command == "status" else run.check
    run_id = run.new_run_id()
    with logging_to(log_file, run_id, view.verbose):
        report = look(
            specs,
            selection=hosts,
            parallel=parallel,
            progress=logged(progress(view, len(specs))),
            run_id=run_id,
        )
    return show(report, report.exit_code(), view)
