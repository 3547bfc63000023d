"""What a test's Python process does in a systemd node: holds GPUs as told, says so, and waits.

Run under many names (see machine.py), so that command lines are as on a real node. The environment
says what it holds: JOB_MEMORY "0=1000,1=1000" (MiB by GPU, devices open and mapped as CUDA does),
JOB_OPEN "nvidiactl" (open only), JOB_WORKERS "2" (the memory is held by so many children instead).
"""

# ruff: noqa: PTH123

import os
import signal
import sys

sys.path.insert(0, "/run/simnode/programs")

from node.birth import (  # type: ignore[import-not-found]  # simfleet's, as it lies in a node
    map_devices,
    open_devices,
    stand_for_memory,
)
from node.linux import STATE  # type: ignore[import-not-found]


def hold(memory: str) -> None:
    sizes = [tuple(map(int, pair.split("="))) for pair in memory.split(",") if pair]
    gpus = [f"/dev/nvidia{gpu}" for gpu, _ in sizes]
    names = [*gpus, "/dev/nvidiactl", "/dev/nvidia-uvm"] if gpus else []
    opened = [f"/dev/{name}" for name in os.environ.get("JOB_OPEN", "").split()]
    spec = {
        "devices": [(name, 2) for name in names] + [(name, 1) for name in opened],
        "maps": names,
        "memory": sizes,
        "lag": 0,
        "smi_name": b"python3",
    }
    map_devices(open_devices(spec), keep_open=True)
    if sizes:
        stand_for_memory(spec)


def ready() -> None:
    with open(f"{STATE}/ready/{os.getpid()}", "w"):
        pass


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    memory = os.environ.get("JOB_MEMORY", "")
    for _ in range(int(os.environ.get("JOB_WORKERS", "0"))):
        reader, writer = os.pipe()
        if not os.fork():
            os.close(reader)
            hold(memory)
            os.close(writer)
            while True:
                signal.pause()
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
    if "JOB_WORKERS" not in os.environ:
        hold(memory)
    ready()
    while True:
        signal.pause()
