"""Reset to verdict: gpufleet against the one-liner that people run by hand, through other tools.

A fast wrong answer doesn't count, so the truth is read from outside as soon as a command returns.
The one-liner kills by pattern: it only ever runs on simulated nodes, in their process namespaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.measure import GPUFLEET, Run, in_turn, measured, spread_of
from bench.peers import PEERS, Call, Hosts
from bench.table import ratio, table
from tests.simfleet import SimFleet, SimNode, scenes
from tests.simfleet.scene import RunningProcess, Scene

ONE_LINER = (
    'ps aux | grep -E "python3|sglang" | grep -v grep | awk "{print \\$2}" |'
    " xargs kill -9 2>/dev/null; sleep 3;"
    ' kill -9 $(fuser /dev/nvidia* 2>/dev/null | tr " " "\\n" | sort -u | grep -v "^$") 2>/dev/null;'
    " sleep 2; nvidia-smi --query-gpu=index,memory.used --format=csv,noheader"
)
BUSY: Scene = (*scenes.IDLE, *scenes.SGLANG_WORKLOAD)
LATE_S = (4.0, 6.0)
"""So long memory stays after its process: below and above the five seconds that the one-liner sleeps."""
DAEMONS = {proc.label for proc in scenes.IDLE}
THROUGH = ("pdsh", "clush", "ansible", "fabric ThreadingGroup")
GPUS = 8


@dataclass(frozen=True)
class Truth:
    """What is so on all nodes together at the moment when a command returned."""

    busy_gpus: int
    workload_alive: int
    daemons_killed: int

    def __str__(self) -> str:
        wrong = [
            f"{count} {what}"
            for count, what in (
                (self.busy_gpus, "GPUs not free"),
                (self.workload_alive, "workload processes alive"),
                (self.daemons_killed, "daemons killed"),
            )
            if count
        ]
        return ", ".join(wrong) or "right"


def truth(fleet: SimFleet, running: dict[str, list[RunningProcess]]) -> Truth:
    busy = alive = killed = 0
    for node in fleet:
        busy += GPUS - free_gpus(node)
        for process in running[node.name]:
            lives = node.alive(process)
            killed += process.label in DAEMONS and not lives
            alive += process.label not in DAEMONS and lives
    return Truth(busy, alive, killed)


def free_gpus(node: SimNode) -> int:
    asked = node.exec("nvidia-smi --query-gpu=index,memory.used --format=csv,noheader")
    return sum(line.endswith(", 0 MiB") for line in asked.stdout.splitlines())


def start(fleet: SimFleet, scene: Scene) -> dict[str, list[RunningProcess]]:
    fleet.clear()
    for node in fleet:
        node.request_start(scene)
    return {node.name: node.await_start(scene) for node in fleet}


def gpufleet(fleet: SimFleet, *options: str) -> Call:
    inventory = str(fleet.fleet_yaml)
    command = [*GPUFLEET, "reset", "-i", inventory, "-H", "all", "--yes"]
    return Call([*command, *options])


def by_hand(fleet: SimFleet, peer: str) -> Call:
    addresses = [node.address for node in fleet]
    hosts = Hosts(addresses, fleet.port, fleet.identity_file, fleet.known_hosts)
    return PEERS[peer](hosts, ONE_LINER)


def run_of(fleet: SimFleet, call: Call, scene: Scene) -> tuple[Run, str]:
    """A run on a freshly busy fleet, and what the result was."""
    running = start(fleet, scene)
    run = measured(call.command, call.env)
    return run, str(truth(fleet, running))


def measure(
    sizes: Sequence[int],
    times: int,
    installed: Sequence[str],
    say: Callable[[str], None],
    late_s: Sequence[float] = LATE_S,
) -> None:
    rows = []
    for size in sizes:
        with SimFleet(size) as fleet:
            rows += _rows(fleet, times, installed, late_s)
    head = ("nodes", "what", "wall s: median (min-max)", "CPU s", "one-liner / it", "result")
    say(table("Reset to verdict", head, rows))


def late(seconds: float) -> Scene:
    return tuple(replace(proc, lag=seconds) if proc.memory else proc for proc in BUSY)


def _rows(
    fleet: SimFleet, times: int, installed: Sequence[str], late_s: Sequence[float]
) -> list[tuple[object, ...]]:
    calls = {
        "gpufleet": (gpufleet(fleet), BUSY),
        "gpufleet --settle 0s": (gpufleet(fleet, "--settle", "0s"), BUSY),
    }
    for peer in THROUGH:
        if peer in installed:
            calls[f"one-liner, {peer}"] = (by_hand(fleet, peer), BUSY)
    for seconds in late_s:
        calls[f"gpufleet, memory {seconds:g} s late"] = (gpufleet(fleet), late(seconds))
        if "pdsh" in installed:
            called = (by_hand(fleet, "pdsh"), late(seconds))
            calls[f"one-liner, pdsh, memory {seconds:g} s late"] = called
    found = in_turn(calls, times, lambda each: run_of(fleet, *each))
    base = [run for run, _ in found.get("one-liner, pdsh", [])]
    rows: list[tuple[object, ...]] = []
    for name, each in found.items():
        runs, results = [run for run, _ in each], Counter(result for _, result in each)
        wall, cpu = (spread_of(runs, lambda r: r.wall_s), spread_of(runs, lambda r: r.cpu_s))
        against = ratio(spread_of(base, lambda r: r.wall_s).median, wall.median) if base else "-"
        said = "; ".join(f"{count} × {what}" for what, count in results.items())
        rows.append((len(fleet), name, wall, f"{cpu.median:.2f}", against, said))
    return rows
