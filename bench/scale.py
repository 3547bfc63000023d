"""A whole look at many nodes: threads of one process, worker processes, Dask; side by side."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.crowd import crowd
from bench.measure import Run, in_turn, measured, spread_of
from bench.table import ratio, table
from tests.daskcluster import DaskCluster

PROGRAM = """
import sys
import gpufleet.run.engine as engine
from gpufleet.__main__ import main
workers = int(sys.argv.pop(1))
if workers == 1:  # one worker process, which the command line has no use for
    engine._threads = lambda executor, *rest: engine._processes(1, *rest[:-1])  # no turns
elif workers:
    engine.MAX_PROCESSES = workers
    sys.argv += ["--processes", str(workers)]
else:
    sys.argv += ["--processes", "1"]
sys.argv[0] = "gpufleet"
main()
"""
THREADS = 16
"""Of each Dask worker: a look waits for its node most of the time."""


@contextlib.contextmanager
def _dask(workers: int) -> Iterator[DaskCluster | None]:
    """None where Dask isn't installed."""
    try:
        import distributed  # noqa: F401, PLC0415
    except ImportError:
        yield None
    else:
        with DaskCluster(workers, THREADS) as cluster:
            yield cluster


def measure(
    sizes: Sequence[int],
    times: int,
    say: Callable[[str], None],
    processes: Sequence[int] = (1, 2),
) -> None:
    """`--parallel` is 64 throughout: what differs is who does the work. CPU is the control machine's,
    without the nodes'; a Dask worker's isn't counted, since it isn't a child of the command."""
    head = ("nodes", "way", "wall s", "nodes/s", "CPU ms/node", "peak MiB", "/ threads", "failed")
    with _dask(2) as cluster:
        for size in sizes:  # a table each: the large ones take their time
            load = os.getloadavg()[0]
            with crowd(size) as (_, inventory):
                ways = {way[0]: way[1:] for way in _ways(inventory, cluster, processes)}
                runs = in_turn(ways, times, lambda way: measured(*way))
            rows = _rows(size, load, runs)
            title = f"A whole look (`status`) at {size} nodes, `--parallel 64`"
            say(table(title, (*head, "load before"), rows))


def _ways(
    inventory: Path, cluster: DaskCluster | None, processes: Sequence[int]
) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    look = ["status", "-i", str(inventory), "-H", "all", "-q"]
    program = [sys.executable, "-c", PROGRAM]
    yield "threads", [*program, "0", *look], {}
    for count in processes:
        yield f"processes {count}", [*program, str(count), *look], {}
    if cluster is not None:
        command = [sys.executable, "-m", "gpufleet", *look]
        dask = ["--engine", "dask", "--scheduler", cluster.address]
        yield "Dask, 2 workers", [*command, *dask], cluster.environment


def _rows(size: int, load: float, runs: dict[str, list[Run]]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    threads = spread_of(runs["threads"], lambda run: run.wall_s).median
    for name, each in runs.items():
        wall = spread_of(each, lambda run: run.wall_s)
        cpu_s = spread_of(each, lambda run: run.cpu_s).median
        peak = max(run.peak_mib for run in each)
        failed = sum(bool(run.status) for run in each)
        cpu = "-" if name.startswith("Dask") else f"{cpu_s / size * 1000:.1f}"
        cells = (wall, f"{size / wall.median:.0f}", cpu, f"{peak:.0f}")
        rows.append((size, name, *cells, ratio(wall.median, threads), failed, f"{load:.1f}"))
    return rows
