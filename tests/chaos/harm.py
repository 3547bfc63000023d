"""Ways to harm a node from outside, and to make it whole again. Each is done at once.

What simfleet has as a fault isn't here. May not follow links of the node's: they would lead to ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from tests.simfleet import SimFleetError, SimNode
from tests.simfleet.files import link_nvidia_smi
from tests.simfleet.scene import encoded

from .fates import Part
from .shielded import VITAL

__all__ = ["encoded"]

FOLDER = "/run/gpufleet"
NOBODY = 65534


def make_fresh(node: SimNode) -> None:
    """An idle node without faults, sshd running, an empty record, nothing of an earlier run."""
    revive_sshd(node)
    node.clear()
    unspoil(node)
    for name in ("told", "units", "installed"):
        shutil.rmtree(node.folder / name, ignore_errors=True)
    (node.folder / "told").mkdir()
    shutil.rmtree(node.path("/run/systemd"), ignore_errors=True)


def revive_sshd(node: SimNode) -> None:
    """The listener listens and no session's sshd is stopped."""
    with contextlib.suppress(SimFleetError):
        node.thaw_sshd()
    node.start_sshd()
    for process in node.processes():
        if process.comm.startswith(b"sshd") and process.state in "Tt":
            node.kill(process, "CONT")


def install_units(node: SimNode, parts: Iterable[Part]) -> None:
    """What the stand-in systemctl has to know; units that run are seen by their processes."""
    for name in ("installed", "units"):
        (node.folder / name).mkdir()
    for part in parts:
        for unit in part.units:
            (node.folder / "units" / unit).touch()
        if part.name == "gpu daemons":
            for unit in VITAL:
                (node.folder / "installed" / unit).touch()


def hold_lock(node: SimNode) -> IO[bytes]:
    """The node's lock as another reset would hold it; closing it sets it free."""
    folder = node.path(FOLDER)
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = (folder / "lock").open("ab")
    lock.write(b"run 20260101-000000-chaos1 by somebody else\n")
    lock.flush()
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def lock_is_free(node: SimNode) -> bool:
    path = node.path(FOLDER) / "lock"
    if path.parent.is_symlink() or not path.is_file():
        return True
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def spoil(node: SimNode, way: str) -> None:
    """/run/gpufleet isn't what a reset may rely on."""
    unspoil(node)
    folder = node.path(FOLDER)
    if way == "link":
        folder.symlink_to("/tmp")
    elif way == "file":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o755 if way == "open" else 0o700)
    if way == "owner":
        os.chown(folder, NOBODY, NOBODY)
    elif way == "lock-folder":
        (folder / "lock").mkdir()
    elif way == "garbage":
        (folder / "lock").write_bytes(b"\xff\x00@@ begin 1/memory\n" * 200)
        (folder / "smi.1.out").write_text("0, 0 MiB\n")
    elif way == "full":
        node.exec(
            f"mount -t tmpfs -o size=4k,mode=700 full {FOLDER}; head -c 9000 /dev/zero >{FOLDER}/x"
        )


def unspoil(node: SimNode) -> None:
    folder = node.path(FOLDER)
    # Through a link umount would take away what it leads to: the node's own /tmp.
    node.exec(f"[ -L {FOLDER} ] || while umount -l {FOLDER} 2>/dev/null; do :; done")
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def give_tool_back(node: SimNode, name: str) -> None:
    folder: Path = node.folder / "bin"
    if name == "nvidia-smi":
        link_nvidia_smi(folder)
    else:
        (folder / name).unlink(missing_ok=True)


def wait_until(condition: Callable[[], bool], limit_s: float = 1.0) -> bool:
    end = time.monotonic() + limit_s
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return met
