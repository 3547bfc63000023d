"""The files of a node, on the host's side: users, keys, sshd's configuration, empty folders.

Writes below the node's folder only; `settings.py` says what stands in the files.
"""

from __future__ import annotations

from pathlib import Path

from .settings import NODE_HOME, NodeSettings, group, passwd, shadow, sshd_config

FOLDERS = ("etc", "faults", "memory", "dead", "signals", "scenes", "owners", "bin")
"""What the stand-ins find below /run/simnode/state."""


def write_files(
    folder: Path, settings: NodeSettings, address: str, port: int, authorized_key: str
) -> None:
    """Modes are set one by one: users of the node look in here, whatever the caller's umask."""
    for name in FOLDERS:
        (folder / name).mkdir()
    for path in (folder, *(folder / name for name in FOLDERS)):
        path.chmod(0o755)
    files = {
        "etc/passwd": passwd(settings),
        "etc/group": group(settings),
        "etc/shadow": shadow(settings),
        "authorized_keys": authorized_key,
        "sshd_config": sshd_config(settings, address, port),
        "gpus": f"{settings.gpus}\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    link_nvidia_smi(folder / "bin")


def link_nvidia_smi(folder: Path) -> None:
    """Puts the stand-in back, without a moment in which there is none."""
    fresh = folder / ".nvidia-smi"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(f"{NODE_HOME}/programs/node/nvidia-smi")
    fresh.replace(folder / "nvidia-smi")


def write_tool(path: Path, script: str) -> None:
    """A shell script in place of what is there; a call sees the old or the new one."""
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(f"#!/bin/sh\n{script}\n")
    fresh.chmod(0o755)
    fresh.replace(path)


def remove_tools(folder: Path) -> None:
    """Leaves only the stand-in nvidia-smi."""
    link_nvidia_smi(folder)
    for path in folder.iterdir():
        if path.name != "nvidia-smi":
            path.unlink()
