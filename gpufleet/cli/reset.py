"""`gpufleet reset`."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Annotated

import typer

from gpufleet.cli.asking import confirm
from gpufleet.cli.failed import nothing_to_do
from gpufleet.cli.options import (
    EngineName,
    Exclude,
    Hosts,
    Inventory,
    Json,
    JsonLines,
    KeepHistory,
    Limit,
    LogFile,
    MetricsFile,
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
from gpufleet.cli.recording import DAYS, Traces, recording
from gpufleet.cli.selecting import selected
from gpufleet.cli.showing import View, show, watching
from gpufleet.errors import UsageError


def reset(
    hosts: Hosts,
    inventory: Inventory = None,
    exclude: Exclude = None,
    limit: Limit = None,
    shard: Shard = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look and plan; send no signal")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Ask nothing")] = False,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="DURATION",
            help="TERM first, KILL after this [default: fleet.yaml, else 0s: KILL at once]",
        ),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="MIB",
            help="MiB per GPU that count as free [default: fleet.yaml, else 0]",
        ),
    ] = None,
    attempts: Annotated[
        str | None,
        typer.Option(
            "--attempts", metavar="N", help="Kill so often at most [default: fleet.yaml, else 3]"
        ),
    ] = None,
    settle: Annotated[
        str | None,
        typer.Option(
            "--settle",
            metavar="DURATION",
            help="Between the two clean samples [default: fleet.yaml, else 500ms]",
        ),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs",
            metavar="spare|kill",
            help="Nodes with a Slurm job or a pod [default: fleet.yaml, else spare: SKIPPED]",
        ),
    ] = None,
    stop_owners: Annotated[
        bool,
        typer.Option(
            "--stop-owners", help="Have systemd, docker, podman, supervisor stop it before the kill"
        ),
    ] = False,
    restart_owners: Annotated[
        bool,
        typer.Option("--restart-owners", help="Start again what was stopped, once CLEAN"),
    ] = False,
    escalate: Annotated[
        str | None,
        typer.Option(
            "--escalate",
            metavar="none|gpu-reset|reboot",
            help="The most that may be done where killing can't help [default: fleet.yaml, else none]",
        ),
    ] = None,
    reboot_timeout: Annotated[
        str | None,
        typer.Option(
            "--reboot-timeout",
            metavar="DURATION",
            help="A rebooted node must be back by then [default: fleet.yaml, else 20m]",
        ),
    ] = None,
    clean_shm: Annotated[
        bool,
        typer.Option("--clean-shm", help="Remove the shared memory that workload left behind"),
    ] = False,
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
    processes: Processes = None,
    engine: EngineName = "local",
    scheduler: Scheduler = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch", metavar="N|P%", help="So many nodes at once, the next when they are done"
        ),
    ] = None,
    max_failures: Annotated[
        str | None,
        typer.Option(
            "--max-failures",
            metavar="N|P%",
            help="Start nothing more after more failures than this; 0: after the first",
        ),
    ] = None,
    canary: Annotated[
        int,
        typer.Option(
            "--canary", metavar="N", help="So many first; the others only if these are CLEAN"
        ),
    ] = 0,
    allow_skipped: Annotated[
        bool, typer.Option("--allow-skipped", help="Exit 0 although nodes were skipped")
    ] = False,
    metrics_file: MetricsFile = None,
    log_file: LogFile = None,
    keep_history: KeepHistory = f"{DAYS}d",
    json: Json = False,
    jsonl: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> int:
    """Kill the workload, prove that every GPU is free, and say so.

    \b
    gpufleet reset -H gpu01 --dry-run                     whom it would kill, and why
    gpufleet reset -H inference-pool -x gpu07 --grace 10s
    gpufleet reset -H inference-pool --quiet --yes        for cron: prints only what failed
    """
    settings: dict[str, str | list[str] | None] = {
        "grace": grace,
        "tolerance": tolerance,
        "attempts": attempts,
        "settle": settle,
        "jobs": jobs,
        "stop": "owner" if stop_owners else None,
        "restart": "yes" if restart_owners else None,
        "escalate": escalate,
        "reboot_timeout": reboot_timeout,
        "clean_shm": "yes" if clean_shm else None,
        "workload": match_workload,
        "protect": protect,
        "timeout": timeout,
    }
    view = View(json, quiet, verbose, no_color, jsonl, shard=shard or "")
    traces = Traces(log_file, metrics_file, keep_history, verbose)
    traces.keep_days  # noqa: B018  # refused now, not after the question
    fleet, specs = selected(inventory, hosts, exclude, limit, settings, shard=shard, quiet=quiet)
    if not specs:
        return nothing_to_do("reset", hosts, view)
    if restart_owners and any(spec.policy.stop != "owner" for spec in specs):
        raise UsageError("--restart-owners starts what --stop-owners stopped: give both")
    from gpufleet import run  # noqa: PLC0415  # only real work pays for these imports
    from gpufleet.run.rolling import parse_rolling  # noqa: PLC0415

    parse_rolling(batch, max_failures, canary)  # before anybody is asked
    where = engine_of(engine, scheduler, processes, len(specs))
    given = {
        **settings,
        "exclude": exclude,
        "limit": limit,
        "shard": shard,
        "parallel": parallel,
        "processes": processes,
        "scheduler": scheduler,
        "batch": batch,
        "max_failures": max_failures,
        "canary": canary or None,
    }
    with contextlib.ExitStack() as screen:
        told = screen.enter_context(watching(view, specs, "reset", hosts, dry_run=dry_run))
        shown = None if dry_run else confirm(fleet, specs, hosts, yes, parallel, where, told)
        if shown is not None:  # its notes were told at the first look
            told = replace(told, on_note=lambda note: None)
        with recording(
            traces, fleet, specs, told, selection=hosts, settings=given, dry_run=dry_run
        ) as record:
            report = run.reset(
                specs,
                selection=hosts,
                dry_run=dry_run,
                parallel=parallel,
                progress=record.progress,
                run_id=record.run_id,
                batch=batch,
                max_failures=max_failures,
                canary=canary,
                shown=shown,
                engine=where,
            )
            screen.close()  # the result takes the live view's place
            exit_code = report.exit_code(allow_skipped=allow_skipped)
            record.finish(replace(report, shard=view.shard), exit_code)
            return show(report, exit_code, view)
