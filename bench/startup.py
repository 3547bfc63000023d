"""How long a command takes before it does anything."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.measure import GPUFLEET, measured, spread_of
from bench.peers import program
from bench.table import table

SIZES = (10, 1000, 5000)


def measure(times: int, installed: Sequence[str], say: Callable[[str], None]) -> None:
    commands: dict[str, list[str]] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "gpufleet --version": [*GPUFLEET, "--version"],
        "gpufleet --help": [*GPUFLEET, "--help"],
    }
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            inventory = Path(folder, f"{size}.yaml")
            hosts = "".join(f"  gpu{i:04d}: 10.{i >> 8}.{i & 255}.1\n" for i in range(size))
            inventory.write_text(f"hosts:\n{hosts}groups:\n  pool: gpu[0000-0007]\n")
            commands[f"gpufleet hosts, {size} hosts"] = [*GPUFLEET, "hosts", "-i", str(inventory)]
        for peer in ("clush", "ansible"):
            if peer in installed:
                commands[f"{peer} --version"] = [program(peer) or peer, "--version"]
        rows = []
        for name, command in commands.items():
            runs = [measured(command) for _ in range(times)]
            wall, cpu = spread_of(runs, lambda r: r.wall_s), spread_of(runs, lambda r: r.cpu_s)
            rows.append((name, wall, cpu, f"{max(run.peak_mib for run in runs):.0f}"))
    say(table("Start-up", ("command", "wall s", "CPU s", "peak MiB"), rows))
