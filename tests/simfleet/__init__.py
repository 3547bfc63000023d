"""A fleet of simulated GPU nodes on one machine: real sshd, processes, fuser and device files.

For tests, the demo and benchmarks; README.md is its manual. Nothing here imports gpufleet.
"""

from __future__ import annotations

from .fleet import SimFleet
from .processes import NodeProcess
from .requirements import SimFleetError, missing
from .scene import Proc, RunningProcess, Scene
from .scenes import IDLE, SGLANG
from .settings import NodeSettings
from .simnode import SimNode

__all__ = [
    "IDLE",
    "SGLANG",
    "NodeProcess",
    "NodeSettings",
    "Proc",
    "RunningProcess",
    "Scene",
    "SimFleet",
    "SimFleetError",
    "SimNode",
    "missing",
]
