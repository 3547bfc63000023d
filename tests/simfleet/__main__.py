"""Runs a simulated fleet for people, the demo and benchmarks.

    python -m tests.simfleet --nodes 4 --folder DIR --scene sglang

Prints the path of fleet.yaml when all is ready, then waits for ^C, SIGTERM, the end of its standard
input (when that is a pipe) or its parent's death, and leaves nothing.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import stat
import sys
from pathlib import Path

from .fleet import SimFleet
from .requirements import SimFleetError
from .scenes import SCENES
from .settings import NodeSettings

LOOK_S = 0.5
"""How soon a parent's death is noticed."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simfleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="how many (4)")
    parser.add_argument("--names", default="gpu{:02d}", help="pattern of their names (gpu{:02d})")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node (8)")
    parser.add_argument("--folder", type=Path, help="new folder for fleet.yaml and keys")
    parser.add_argument("--scene", choices=sorted(SCENES), help="what runs on each node (nothing)")
    return parser.parse_args(arguments)


def await_end() -> None:
    """Returns at the end of a piped standard input, or when the parent is gone."""
    parent = os.getppid()
    mode = os.fstat(sys.stdin.fileno()).st_mode
    watched = [sys.stdin] if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else []
    while os.getppid() == parent:
        if select.select(watched, [], [], LOOK_S)[0] and not os.read(sys.stdin.fileno(), 4096):
            return


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    scene = SCENES[options.scene] if options.scene else None
    try:
        settings = NodeSettings(gpus=options.gpus)
        fleet = SimFleet(
            options.nodes, options.names, scene=scene, folder=options.folder, settings=settings
        )
        with fleet:
            print(fleet.fleet_yaml, flush=True)
            await_end()
    except (SimFleetError, FileExistsError) as error:
        print(f"simfleet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
