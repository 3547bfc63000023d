"""Turns the namespaces that `unshare` made into a node, then becomes its init.

Runs as root inside the new namespaces and changes nothing outside: every mount is private to the
node, and the host's file system becomes read-only in it. No process of the node may be started
here.
"""

# pathlib takes 8 ms to load
# ruff: noqa: PTH102, PTH115, PTH211

from __future__ import annotations

import os

from .linux import HOME, MS_BIND, MS_NOSUID, MS_RDONLY, MS_REMOUNT, mount, set_host_name

ZERO = os.makedev(1, 5)
"""/dev/zero: opening it is harmless, and unlike /dev/full a private mapping shows its path."""

NODES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-nvswitchctl")
RUN_FOLDERS = ("lock", "sshd", "home", "user", "simnode", "simnode/state", "simnode/programs")


def make_devices(gpus: int) -> None:
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=8m")
    for name, (major, minor) in NODES.items():
        os.mknod(f"/dev/{name}", 0o20666, os.makedev(major, minor))
    for name, target in LINKS.items():
        os.symlink(target, f"/dev/{name}")
    for name in (*(f"nvidia{gpu}" for gpu in range(gpus)), *SHARED):
        os.mknod(f"/dev/{name}", 0o20666, ZERO)
    os.mkdir("/dev/nvidia-caps", 0o755)
    for name in ("nvidia-cap1", "nvidia-cap2"):
        os.mknod(f"/dev/nvidia-caps/{name}", 0o20444, ZERO)
    os.mkdir("/dev/pts", 0o755)
    mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=666,mode=620")
    os.mkdir("/dev/shm", 0o755)
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID, "mode=1777,size=64m")


def make_folders(state: int, programs: int, homes: list[str]) -> None:
    """`state` and `programs` are open folders: their paths may lie in what is covered here."""
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID, "mode=755,size=64m")
    for folder in RUN_FOLDERS:
        os.mkdir(f"/run/{folder}", 0o755)
    mount(f"/proc/self/fd/{state}", f"{HOME}/state", "", MS_BIND)
    mount(f"/proc/self/fd/{programs}", f"{HOME}/programs", "", MS_BIND)
    for folder in ("/var/lib", "/var/log"):  # a node's own; nothing in it needs the machine's
        mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=755,size=16m")
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID, "mode=1777,size=256m")
    for home in homes:
        user, uid, gid = home.split(":")
        os.mkdir(f"/run/home/{user}", 0o700)
        os.chown(f"/run/home/{user}", int(uid), int(gid))
    for name in ("passwd", "group", "shadow"):
        mount(f"{HOME}/state/etc/{name}", f"/etc/{name}", "", MS_BIND)


def main(arguments: list[str]) -> None:
    state_path, programs_path, name, gpus, python, arch, homes = arguments
    host_pid = os.readlink("/proc/self")  # still the host's /proc
    state = os.open(state_path, os.O_RDONLY | os.O_DIRECTORY)
    programs = os.open(programs_path, os.O_RDONLY | os.O_DIRECTORY)
    set_host_name(name)
    os.umask(0)  # device nodes get the mode that is asked for
    os.chdir("/")
    make_folders(state, programs, homes.split())
    make_devices(int(gpus))
    mount("proc", "/proc", "proc", MS_NOSUID)
    # What a wrong script removes in the node isn't the host's; the node's own mounts stay writable.
    mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.umask(0o022)
    init = f"{HOME}/programs/perl/init"
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    os.execve(init, [init, f"{HOME}/programs/node/init.pl", host_pid, python, arch], environment)
