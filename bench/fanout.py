"""The same nvidia-smi query on many hosts, through each tool; and what it costs as hosts grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.crowd import QUERY, crowd
from bench.measure import GPUFLEET, Run, in_turn, measured, spread_of
from bench.peers import PEERS, Call, Hosts, library
from bench.table import ratio, table

OURS = "gpufleet, the query"
BARE_HOSTS = 20
"""One after the other: enough for what one costs."""


def calls(hosts: Hosts, inventory: Path, installed: Sequence[str]) -> dict[str, Call]:
    status = [*GPUFLEET, "status", "-i", str(inventory), "-H", "all", "-q"]
    found = {OURS: library("gpufleet")(hosts, QUERY), "gpufleet status, a whole look": Call(status)}
    return found | {name: PEERS[name](hosts, QUERY) for name in PEERS if name in installed}


def measure(
    sizes: Sequence[int], times: int, installed: Sequence[str], say: Callable[[str], None]
) -> None:
    rows: list[tuple[object, ...]] = []
    for size in sizes:
        with crowd(size) as (hosts, inventory):
            few = Hosts(hosts.addresses[:BARE_HOSTS], *_rest(hosts))
            bare = _cpu_per_host(few, library("bare")(few, QUERY), times)
            runs = in_turn(calls(hosts, inventory, installed), times, _measured)
        rows += _rows(size, runs, bare)
    head = (
        "hosts",
        "tool",
        "wall s",
        "CPU ms/host",
        "/ bare fabric",
        "peak MiB",
        "wall / best peer",
    )
    say(table(f"`{QUERY}`", (*head, "failed runs"), rows))


def _measured(call: Call) -> Run:
    return measured(call.command, call.env)


def _rest(hosts: Hosts) -> tuple[int, Path, Path]:
    return hosts.port, hosts.identity, hosts.known_hosts


def _cpu_per_host(hosts: Hosts, call: Call, times: int) -> float:
    """Without the start-up of the interpreter: the difference between all hosts and one."""
    one = library("bare")(Hosts(hosts.addresses[:1], *_rest(hosts)), QUERY)
    count = len(hosts.addresses)
    if count < 5:
        return 0.0
    many = spread_of([measured(call.command) for _ in range(times)], lambda r: r.cpu_s).low
    single = spread_of([measured(one.command) for _ in range(times)], lambda r: r.cpu_s).low
    return (many - single) / (count - 1)


def _rows(size: int, runs: dict[str, list[Run]], bare: float) -> list[tuple[object, ...]]:
    walls = {name: spread_of(each, lambda r: r.wall_s) for name, each in runs.items()}
    good = {name for name, each in runs.items() if not any(run.status for run in each)}
    peers = [walls[name].median for name in runs if name in good and name in PEERS]
    rows: list[tuple[object, ...]] = []
    for name, each in runs.items():
        cpu = spread_of(each, lambda r: r.cpu_s).median / size
        peak = max(run.peak_mib for run in each)
        best = ratio(walls[name].median, min(peers)) if peers else "-"
        failed = sum(bool(run.status) for run in each)
        cells = (f"{cpu * 1000:.1f}", ratio(cpu, bare), f"{peak:.0f}", best, failed)
        rows.append((size, name, walls[name], *cells))
    return rows


def growth(sizes: Sequence[int], say: Callable[[str], None]) -> None:
    """One line per number of hosts, and the exponent of a straight line through the logarithms."""
    rows, points = [], []
    for size in sizes:
        with crowd(size) as (hosts, _):
            call = library("gpufleet")(hosts, QUERY)
            run = measured(call.command, call.env)
        points.append((size, run))
        cells = (f"{run.wall_s:.2f}", f"{run.cpu_s:.2f}", f"{run.peak_mib:.0f}", run.status)
        rows.append((size, *cells))
    head = ("hosts", "wall s", "CPU s", "peak MiB", "exit")
    say(table("Cost growth, gpufleet, the query", head, rows))
    for what, value in (("wall", lambda r: r.wall_s), ("CPU", lambda r: r.cpu_s)):
        say(f"{what} grows with hosts to the power of {exponent(points, value):.2f}")


def exponent(points: Sequence[tuple[int, Run]], value: Callable[[Run], float]) -> float:
    """The slope of log(value - that of the smallest) over log(hosts): without the start-up."""
    (_, first), *others = points
    pairs = [
        (math.log(size), math.log(more))
        for size, run in others
        if (more := value(run) - value(first)) > 0
    ]
    if len(pairs) < 2:
        return math.nan
    mean_x = sum(x for x, _ in pairs) / len(pairs)
    mean_y = sum(y for _, y in pairs) / len(pairs)
    over = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return over / sum((x - mean_x) ** 2 for x, _ in pairs)
