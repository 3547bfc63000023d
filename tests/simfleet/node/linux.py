"""What Python can't say to the kernel by itself: mounts, command lines, owners, users.

Only plain calls, without knowledge of scenes; works on the calling process, as root. Imports only
what loads in a millisecond: every scene and every node pays for it.
"""

# pathlib takes 8 ms to load
# ruff: noqa: PTH104, PTH110, PTH123

from __future__ import annotations

import ctypes
import os
import struct

MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
CLONE_NEWNS = 0x20000
TIOCSCTTY = 0x540E
PR_SET_DUMPABLE, PR_SET_MM, PR_SET_MM_MAP = 4, 35, 14
SYSCALLS = {"x86_64": (157, 12, 9), "aarch64": (167, 214, 222), "riscv64": (167, 214, 222)}
"""Numbers of prctl, brk and mmap for perl, which has no other way to them without a module."""

HOME = "/run/simnode"
STATE = f"{HOME}/state"

libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
libc.sbrk.argtypes = [ctypes.c_ssize_t]
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PAGE, PROT_READ, MAP_PRIVATE = 4096, 1, 2


def failed(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    words = [text.encode() for text in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None):
        raise failed(target)


def map_private(fd: int) -> int:
    """Maps a page, at the address returned; unlike the mmap module it keeps no descriptor."""
    return int(libc.mmap(None, PAGE, PROT_READ, MAP_PRIVATE, fd, 0))


def unmap(address: int) -> None:
    libc.munmap(address, PAGE)


def set_host_name(name: str) -> None:
    if libc.sethostname(name.encode(), ctypes.c_size_t(len(name.encode()))):
        raise failed(name)


def stat_fields(pid: int | str) -> list[bytes]:
    """Fields of /proc/PID/stat from the third on: field n of proc(5) is at n - 3."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2].split()


def start_ticks(pid: int | str) -> int:
    return int(stat_fields(pid)[22 - 3])


ADDRESSES = [int(text) if text.isdigit() else 0 for text in [b"", b"", b"", *stat_fields("self")]]
"""Own stat, indexed as in proc(5), as it was at the start: its addresses hold in every fork."""
ARG_START, ARG_END = ADDRESSES[48], ADDRESSES[49]


def retitle(title: bytes, *, exact: bool) -> None:
    """Overwrites the argument area; `exact` also moves its end, as a fresh exec would have it.

    PR_SET_MM_MAP needs no privilege, unlike PR_SET_MM_ARG_END.
    """
    title = title[: ARG_END - ARG_START]
    memory = os.open("/proc/self/mem", os.O_RDWR)
    os.pwrite(memory, title + bytes(ARG_END - ARG_START - len(title)), ARG_START)
    os.close(memory)
    end = ARG_START + len(title) if exact else ARG_END
    code_and_data = [ADDRESSES[field] for field in (26, 27, 45, 46, 47)]
    stack = [ADDRESSES[28], ARG_START, end, ADDRESSES[50], ADDRESSES[51]]
    area = struct.pack("=12QII", *code_and_data, libc.sbrk(0), *stack, 0, 0, 0xFFFFFFFF)
    libc.prctl(PR_SET_MM, PR_SET_MM_MAP, area, ctypes.c_ulong(len(area)), 0)


def set_comm(comm: bytes) -> None:
    with open("/proc/self/comm", "wb", buffering=0) as file:
        file.write(comm or b"\0")


def own(pid: int, owner: str) -> None:
    """Lets /proc/PID/cgroup say `owner`; the mount goes when the process does."""
    path = f"{STATE}/owners/{owner.replace('/', '%')}"
    if not os.path.exists(path):
        with open(f"{path}.{pid}", "w") as file:
            file.write(f"0::{owner}\n")
        os.rename(f"{path}.{pid}", path)
    mount(path, f"/proc/{pid}/cgroup", "", MS_BIND)


def enter_container(gpus: list[int]) -> None:
    """An own mount namespace whose /dev has nodes made by mknod: no fuser outside finds them."""
    if libc.unshare(CLONE_NEWNS):
        raise failed("unshare")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", "/dev", "tmpfs", 0, "mode=755,size=1m")
    os.mknod("/dev/null", 0o20666, os.makedev(1, 3))
    for name in [f"nvidia{gpu}" for gpu in gpus] + ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]:
        os.mknod(f"/dev/{name}", 0o20666, os.makedev(1, 5))


def open_terminal() -> None:
    """Becomes leader of a session on a new terminal; keeps its master, so that nobody hangs up."""
    master, terminal = os.openpty()
    os.set_inheritable(master, True)
    libc.ioctl(terminal, TIOCSCTTY, 0)
    for fd in (0, 1, 2):
        os.dup2(terminal, fd)
    os.close(terminal)


def become_user(uid: int, gid: int, *, keep_root: bool) -> None:
    """`keep_root`: saved uid 0, so that a child can still be root's to begin with."""
    if uid == 0:
        return
    os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, 0 if keep_root else uid)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/PID/fd would be root's
