"""What a finished reset left on its node and in this process.

Reads only. A process counts as left behind when it came after the reset's start, belongs neither to
the scene nor to chaos, and lives on.
"""

from __future__ import annotations

import gc
import os
import threading
import time

from tests.simfleet import NodeProcess

from .harm import lock_is_free
from .stage import Stage
from .truth import born_s

WITHIN_S = 3.0


def await_quiet(stage: Stage, since_s: float) -> str:
    """Waits until nothing is left; else what is, in words. Faults that slow a script give it longer."""
    slow_s = sum(trouble.slows_s for trouble in stage.drawn.troubles)
    until = time.monotonic() + WITHIN_S + slow_s
    while True:
        left = _left(stage, since_s)
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.05)


def _left(stage: Stage, since_s: float) -> str:
    node = stage.node
    found = [process for process in node.processes() if _is_left(stage, process, since_s)]
    if found:
        return "; ".join(f"pid {p.pid} {p.state} {p.args!r}" for p in found[:4])
    return "" if lock_is_free(node) else "the lock is held"


def _is_left(stage: Stage, process: NodeProcess, since_s: float) -> bool:
    if process.state in "ZX" or born_s(process) < since_s or process.owner not in {"", "/"}:
        return False
    if (process.pid, process.start_ticks) in stage.cast or process.args in stage.families:
        return False
    text = b" ".join(process.args)
    chaos = (b"/tmp/chaos-", b"/tmp/sglang-", b"[listener]", b"/run/simnode/programs")
    resting = process.comm == b"sleep" and _has_own_loops(stage)
    return not any(mark in text for mark in chaos) and not resting


def _has_own_loops(stage: Stage) -> bool:
    """churn and forkers sleep; their sleeps are nobody's business."""
    return stage.drawn.has("churn") or stage.drawn.has("forker")


def counted_here() -> tuple[int, int]:
    """Threads and open descriptors of this process, garbage collected before."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # a count
