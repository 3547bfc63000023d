"""What this machine must have for simulated nodes; says in one line what to install.

Only looks; starts no node.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

SBIN = "/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES = {
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "fuser": "psmisc",
    "perl": "perl-base",
}


class SimFleetError(Exception):
    """A simulated fleet can't start or does not answer. One line."""


def missing() -> str:
    """One line that says what is absent and how to get it; empty when all is there."""
    if not sys.platform.startswith("linux"):
        return "simulated nodes need Linux"
    if os.geteuid() != 0:
        return "simulated nodes need root (namespaces and device nodes): run this as root"
    absent = {package for tool, package in PACKAGES.items() if not shutil.which(tool, path=SBIN)}
    if absent:
        return f"simulated nodes need: apt-get install {' '.join(sorted(absent))}"
    probe = ["unshare", "--pid", "--fork", "--mount", "--uts", "--ipc", "--cgroup", "true"]
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        return "simulated nodes need the right to make namespaces (container without privileges?)"
    return (
        ""
        if python_path()
        else "simulated nodes need a python3 with ctypes: apt-get install python3"
    )


@functools.cache
def python_path() -> str:
    """The interpreter that workload processes run: its file name is matched by `python3`."""
    base = getattr(sys, "_base_executable", sys.executable)
    for path in (shutil.which("python3", path="/usr/bin:/usr/local/bin"), base):
        real = os.path.realpath(path) if path else ""
        if Path(real).name.startswith("python3") and not real.startswith(("/run/", "/tmp/")):
            check = [real, "-I", "-S", "-c", "import ctypes, marshal"]
            if subprocess.run(check, check=False, capture_output=True).returncode == 0:
                return real
    return ""


def require() -> None:
    """Raises SimFleetError when a fleet can't start here."""
    if line := missing():
        raise SimFleetError(line)
