"""Texts of unit files. Pure: writes nothing, starts nothing.

What a stand-in holds stands in its environment (node/job.py, node/daemon.pl).
"""

from __future__ import annotations

from typing import Any

PROGRAMS = "/run/simnode/programs"
JOBS = f"{PROGRAMS}/jobs"
"""Working folder of Python jobs: its names are scripts and modules that all are node/job.py."""

MODULES = ("sglang/launch_server.py", "train.py", "portal.py", "exporter.py")

DAEMONS = {
    "nvidia-fabricmanager": ("nv-fabricmanager", "nvidiactl nvidia-nvswitchctl"),
    "nvidia-persistenced": ("nvidia-persistenced", "nvidiactl nvidia0 nvidia1"),
    "nvidia-dcgm": ("nv-hostengine", "nvidiactl nvidia0"),
}
"""Unit: program, and what it has open."""

SGLANG = "-m sglang.launch_server --model-path llama --port 30000"


def unit(command: str, *, environment: str = "", wanted_by: str = "", **service: Any) -> str:
    """A service. Keywords are lines of [Service]; a list gives several of a name."""
    lines = ["[Unit]", "Description=a test's", "[Service]", f"ExecStart={command}"]
    if environment:
        lines.append(f'Environment="{environment}"')
    for key, value in service.items():
        values = value if isinstance(value, list | tuple) else [value]
        lines += [f"{key}={one}" for one in values]
    if wanted_by:
        lines += ["[Install]", f"WantedBy={wanted_by}"]
    return "\n".join(lines) + "\n"


def job(
    command: str = SGLANG, *, memory: str = "", opens: str = "", workers: int = 0, **service: Any
) -> str:
    """A Python service: `command` is what stands behind `python3`."""
    held = {"JOB_MEMORY": memory, "JOB_OPEN": opens, "JOB_WORKERS": workers or ""}
    lines = [f'"{name}={value}"' for name, value in held.items() if value]
    service = {"WorkingDirectory": JOBS, **service}
    if lines:
        service["Environment"] = " ".join(lines)
    return unit(f"/usr/bin/python3 {command}", **service)


def daemon(name: str, **service: Any) -> str:
    """One of DAEMONS, enabled when asked to be."""
    program, opens = DAEMONS[name]
    command = f"{PROGRAMS}/perl/{program} {PROGRAMS}/node/daemon.pl -c {program}.cfg"
    return unit(command, environment=f"JOB_OPEN={opens}", wanted_by="multi-user.target", **service)
