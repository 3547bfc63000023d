"""Takes tools and device files away from a running node, and gives them back.

Works from outside through the node's root; the host's own files stay as they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from .files import link_nvidia_smi
from .requirements import SBIN, SimFleetError
from .settings import NODE_HOME

DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-nvswitchctl")


def tool_folder(tool: str) -> str:
    found = shutil.which(tool, path=SBIN)
    if found is None:
        raise SimFleetError(f"{tool} isn't on this machine anyway")
    return str(Path(found).resolve().parent)


class Absence:
    """What a node lacks at the moment. "devices" stands for /dev/nvidia*."""

    def __init__(self, root: Path, gpus: int, run: Callable[[str], None]) -> None:
        """`run` runs a command in the node and raises when it fails."""
        self._root = root
        self._gpus = gpus
        self._run = run
        self._absent: list[str] = []

    def take(self, thing: str) -> None:
        if thing in self._absent:
            return
        if thing == "devices":
            for path in (self._root / "dev").glob("nvidia*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif thing == "nvidia-smi":
            (self._root / "run/simnode/state/bin/nvidia-smi").unlink()
        else:
            self._cover(thing)
        self._absent.append(thing)

    def give_back(self, thing: str) -> None:
        """Does nothing when it isn't absent."""
        if thing not in self._absent:
            return
        self._absent.remove(thing)
        if thing == "devices":
            self._make_devices()
        elif thing == "nvidia-smi":
            link_nvidia_smi(self._root / "run/simnode/state/bin")
        else:
            # Covers lie on one another: take all off and put the others back.
            covered = [tool for tool in self._absent if tool not in ("devices", "nvidia-smi")]
            for tool in (*covered, thing):
                self._run(f"umount -l {tool_folder(tool)}")
            for tool in covered:
                self._cover(tool)

    def give_all_back(self) -> None:
        for thing in list(self._absent):
            self.give_back(thing)

    def _cover(self, tool: str) -> None:
        """Lays over the tool's folder one in which overlayfs sees it deleted (device 0:0)."""
        folder = tool_folder(tool)
        hidden = f"{NODE_HOME}/hidden/{tool}"
        whiteout = self._root / hidden.lstrip("/") / tool
        whiteout.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(whiteout):
            os.mknod(whiteout, 0o20000, os.makedev(0, 0))
        self._run(f"mount -t overlay overlay -o lowerdir={hidden}:{folder} {folder}")

    def _make_devices(self) -> None:
        """As node/setup.py made them, but for nvidia-caps."""
        for name in (*(f"nvidia{gpu}" for gpu in range(self._gpus)), *DEVICES):
            path = self._root / "dev" / name
            os.mknod(path, 0o20666, os.makedev(1, 5))
            path.chmod(0o666)  # whatever the umask
