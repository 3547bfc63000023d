"""Shows one made-up view on the terminal it runs in, and waits: `play VIEW NODES READY-FILE`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpufleet.cli.streams import ink_for
from gpufleet.model import NodeReport
from gpufleet.render.board import Board
from gpufleet.render.heat import status_text
from gpufleet.render.live import Shown, live
from gpufleet.render.text import run_text
from tests.screens.made import reset_run, status_run


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def shown(count: int) -> Iterator[None]:
    """The live view of a reset of which a third has ended, a third runs, and the rest waits."""
    clock = Clock()
    nodes = reset_run(count).nodes
    made = Board({node.host: 8 for node in nodes}, clock)
    with live(made, sys.stderr, ink_for(sys.stderr), keep=False) as board:
        fill(board, nodes, clock)
        time.sleep(0.6)
        yield


def fill(board: Shown, nodes: Sequence[NodeReport], clock: Clock) -> None:
    count = len(nodes)
    for number, node in enumerate(nodes):
        clock.now = number / 100
        if number < count // 3:
            board.on_event(node.host, "connect", "")
            board.on_report(node)
        elif number <= 2 * count // 3:
            board.on_event(node.host, "connect", "")
            if number % 4 == 0:
                board.on_event(node.host, "retry", "try 1: connection refused; next in 0.4 s")
            elif number % 4 == 1:
                board.on_event(node.host, "look", "")
            else:
                board.on_event(
                    node.host, "memory", "0=150000 1=150000 2=61000 3=61000 4=0 5=0 6=? 7=0"
                )
                board.on_event(node.host, "kill", "attempt 1: 8 processes")
                board.on_event(node.host, "free", f"dying: {4000 + number}")
    clock.now = 75.25


def main(view: str, count: int, ready: Path) -> None:
    if view == "live":
        with shown(count):
            ready.touch()
            sys.stdin.readline()
        return
    if view == "after":
        with shown(count):
            pass
        view = "result"
    ink = ink_for(sys.stdout)
    made = {
        "result": lambda: run_text(reset_run(count), ink=ink),
        "status": lambda: status_text(status_run(count), ink=ink),
    }
    sys.stdout.write(made[view]())
    sys.stdout.flush()
    ready.touch()
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
