"""`gpufleet status` and `gpufleet check`: they change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpufleet.cli.options import (
    Exclude,
    Hosts,
    Inventory,
    Json,
    Limit,
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
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Memory, holders and health of each node; changes nothing."""
    view = View(json, quiet, verbose, no_color)
    _, specs = selected(inventory, hosts, exclude, limit, {"timeout": timeout})
    return _inspect("status", specs, hosts, parallel, view)


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
    _, specs = selected(inventory, hosts, exclude, limit, {"timeout": timeout})
    return _inspect("check", specs, hosts, parallel, view)


def _inspect(
    command: Literal["status", "check"],
    specs: list[NodeSpec],
    hosts: str,
    parallel: int,
    view: View,
) -> int:
    from gpufleet import run  # noqa: PLC0415  # as above

    look = run.status if command == "status" else run.check
    report = look(specs, selection=hosts, parallel=parallel, progress=progress(view, len(specs)))
    return show(report, report.exit_code(), view)
