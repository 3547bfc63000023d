"""Options that several commands share, each with its unit and what it is without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.completion import complete_hosts
from gpufleet.errors import UsageError
from gpufleet.masking import printable

if TYPE_CHECKING:
    from gpufleet.run import Engine

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
        help="Host, group, gpu[01-16], comma list, all, @failed (not CLEAN in the last reset), "
        "@failed:RUN; also ClusterShell's ! and &, quoted",
        autocompletion=complete_hosts,
    ),
]
AnyHosts = Annotated[
    str,
    typer.Option(
        "-H",
        "--hosts",
        metavar="SELECTION",
        help="What to show",
        autocompletion=complete_hosts,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "-x",
        "--exclude",
        metavar="SELECTION",
        help="Leave these out (repeatable)",
        autocompletion=complete_hosts,
    ),
]
Limit = Annotated[
    str | None,
    typer.Option(
        "--limit",
        metavar="SELECTION",
        help="Only those that are in both",
        autocompletion=complete_hosts,
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Only part I of N of the selection, by a hash of each name; see gpufleet merge",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output")]
JsonLines = Annotated[
    bool, typer.Option("--jsonl", help="Events while it runs, one JSON object per line")
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Only nodes that failed or carry a warning")
]
Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        show_default=False,
        help="List killed, spared and each GPU; -vv: every event and SSH's own log on stderr",
    ),
]
Parallel = Annotated[int, typer.Option("--parallel", metavar="N", help="Nodes at once")]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        help="Worker processes that share the nodes [default: 1; from 500 nodes on one per core]",
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="local|dask",
        help="Where nodes are worked on: here, or by the workers of a Dask cluster",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="tls://HOST:PORT", help="The scheduler of --engine dask"),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="Per node, from its own start [default: fleet.yaml, else 300s]",
    ),
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours (or set NO_COLOR)")]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file", metavar="FILE", help="Append every event, one JSON line each (mode 0600)"
    ),
]
MetricsFile = Annotated[
    Path | None,
    typer.Option(
        "--metrics-file",
        metavar="FILE",
        help="Prometheus metrics of the result, for node_exporter's textfile collector",
    ),
]
KeepHistory = Annotated[
    str,
    typer.Option(
        "--keep-history",
        metavar="DAYS",
        envvar="GPUFLEET_KEEP_HISTORY",
        help="Delete records of older runs, like 90d; 0: keep all",
    ),
]


def engine_of(engine: str, scheduler: str | None, processes: int | None, nodes: int) -> Engine:
    """What these options mean together. Raises `UsageError` before anything is looked at."""
    from gpufleet.run import Engine  # noqa: PLC0415  # only real work pays for these imports

    if engine not in {"local", "dask"}:
        raise UsageError(f'--engine: read "{printable(engine)}": local or dask')
    if (engine == "dask") != (scheduler is not None):
        raise UsageError("--engine dask and --scheduler tls://HOST:PORT: give both")
    if scheduler is not None:
        if processes is not None:
            raise UsageError("--processes is for --engine local: a Dask cluster has its own")
        from gpufleet.run.cluster import check_address  # noqa: PLC0415  # as above

        check_address(scheduler)
        return Engine(scheduler=scheduler)
    found = Engine(processes)
    found.count(nodes)
    return found
