"""python -m bench [reset] [fanout] [growth] [startup] [scale] [--runs N] [--quick]"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence

from bench import fanout, peers, reset, scale, startup
from bench.table import table

PARTS = ("startup", "reset", "fanout", "growth", "scale")


def say(text: str) -> None:
    print(text, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"any of {' '.join(PARTS)} (all)")
    parser.add_argument("--runs", type=int, default=5, help="of each measurement (5)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 50, 200, 1000])
    parser.add_argument("--crowd", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="does it run? once, with few hosts")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    runs, nodes, hosts = options.runs, options.nodes, options.hosts
    sizes = [10, 50, 200, 500, 1000, 2000]
    late_s: Sequence[float] = reset.LATE_S
    if options.quick:
        runs, nodes, hosts, sizes = 1, [1], [2], [2, 4, 8]
        options.crowd, options.processes = [2], [2]
    versions = peers.versions()
    installed = [name for name, version in versions.items() if version]
    load = os.getloadavg()[0]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"
    say(f"{time.strftime('%Y-%m-%d %H:%M')}, {machine}, Python {platform.python_version()}")
    say(f"load before the start: {load:.1f}; {runs} runs each, median (min-max)")
    rows = [(name, version or "MISSING: not measured") for name, version in versions.items()]
    say(table("Peers", ("tool", "version"), rows))
    through = installed
    if options.quick:
        through, late_s = [name for name in ("fabric ThreadingGroup",) if name in installed], ()
    for part in options.parts or PARTS:
        if part == "startup":
            startup.measure(runs, installed, say)
        elif part == "reset":
            reset.measure(nodes, runs, through, say, late_s)
        elif part == "scale":
            scale.measure(options.crowd, min(runs, 3), say, options.processes)
        elif part == "fanout":
            fanout.measure(hosts, runs, installed, say)
        else:
            fanout.growth(sizes, say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
