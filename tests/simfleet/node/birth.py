"""How a fork becomes the process that a scene describes, its children before it where they must.

The process tree grows from inside: each process forks its own children. A fork never returns from
here into its parent's code.
"""

# pathlib takes 8 ms to load
# ruff: noqa: PTH103, PTH104, PTH120, PTH208

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # signal itself takes 7 ms to load
import os

from .life import HANDLED, Life, start_threads
from .linux import (
    HOME,
    STATE,
    SYSCALLS,
    become_user,
    enter_container,
    map_private,
    open_terminal,
    own,
    retitle,
    set_comm,
    start_ticks,
    unmap,
)

TYPE_CHECKING = False  # as typing's, which takes 12 ms to load
if TYPE_CHECKING:
    from typing import Any

    Spec = dict[str, Any]

MAPPED: list[int] = []
"""Addresses of what this process maps; a respawned child gives it up."""


def open_devices(spec: Spec) -> list[int]:
    """Opens what the process holds; returns the descriptors to map, one for each path."""
    for path, count in spec["devices"]:
        for _ in range(count):
            os.set_inheritable(os.open(path, os.O_RDWR), True)
    to_map = [os.open(path, os.O_RDWR) for path in spec["maps"]]
    for fd in to_map:
        os.set_inheritable(fd, True)
    return to_map


def stand_for_memory(spec: Spec) -> None:
    """Holds the FIFO that nvidia-smi takes for memory, and that a child may inherit."""
    sizes = ",".join(f"{gpu}={mib}" for gpu, mib in spec["memory"])
    name = spec["smi_name"][:40].hex()
    entry = f"{os.getpid()}-{start_ticks('self')};{spec['lag']};{sizes};{name}"
    hidden, path = f"{STATE}/memory/.{entry}", f"{STATE}/memory/{entry}"
    os.mkfifo(hidden, 0o644)  # nvidia-smi is everybody's
    os.set_inheritable(os.open(hidden, os.O_RDWR), True)
    os.rename(hidden, path)  # seen only when it is held


def map_devices(fds: list[int], *, keep_open: bool) -> None:
    for fd in fds:
        MAPPED.append(map_private(fd))
        if not keep_open:
            os.close(fd)


def close_all() -> None:
    """Lets go of all that a respawned process would otherwise inherit."""
    while MAPPED:
        unmap(MAPPED.pop())
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:  # noqa: SIM105  contextlib takes 4 ms to load
                os.close(int(name))
            except OSError:
                pass  # the listing's own is closed by now


class Family:
    """All processes of a scene; `ready` is where each says that it is what it should be."""

    def __init__(self, specs: list[Spec], arch: str) -> None:
        self.specs = specs
        self.arch = arch
        self.ready = -1
        self.reader = -1
        """The seed's end of `ready`; no fork may keep it."""

    def children(self, label: str, *, inheriting: bool) -> list[Spec]:
        return [s for s in self.specs if s["parent"] == label and s["inherits"] == inheriting]

    def fork(self, spec: Spec) -> int:
        if pid := os.fork():
            return pid
        try:
            if self.reader >= 0:
                os.close(self.reader)
                self.reader = -1
            self.grow(spec)
        except BaseException as error:  # noqa: BLE001  a fork never goes on as its parent
            os.write(self.ready, f"!{spec['label']}: {error}\n".encode()[:500])
        os._exit(1)

    def respawn(self, spec: Spec) -> int:
        """A new one in place of a child that ended, forked by a process that lives already."""
        if pid := os.fork():
            return pid
        try:
            if os.getuid():
                os.setresuid(0, 0, 0)
            close_all()
            self.ready = os.open("/dev/null", os.O_WRONLY)
            self.grow(spec, again=True)
        finally:
            os._exit(1)

    def grow(self, spec: Spec, *, again: bool = False) -> None:
        self.leave_parent(spec)
        born = {self.fork(child): child for child in self.children(spec["label"], inheriting=False)}
        maps = open_devices(spec)
        if spec["memory"]:
            stand_for_memory(spec)
        for child in self.children(spec["label"], inheriting=True):
            born[self.fork(child)] = child
        if spec["dead"]:
            os._exit(0)
        if again:  # the seed isn't there to do it
            if spec["owner"]:
                own(os.getpid(), spec["owner"])
            os.kill(1, signal.SIGUSR1)
        if spec["python"]:
            self.become_python(spec, maps, born)
        self.become_program(spec, maps)

    def leave_parent(self, spec: Spec) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        if spec["session"]:
            os.setsid()
        if not spec["inherits"]:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.close(null)
        if spec["tty"]:
            open_terminal()
        if spec["container"]:
            enter_container([gpu for gpu, _ in spec["memory"]])

    def become_python(self, spec: Spec, maps: list[int], born: dict[int, Spec]) -> None:
        map_devices(maps, keep_open=spec["descriptors"])
        retitle(b"".join(word + b"\0" for word in spec["args"]), exact=not spec["retitled"])
        set_comm(spec["comm"])
        start_threads(spec["threads"])
        log = os.open(
            f"{STATE}/signals/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
        )
        respawns = any(child["respawn"] is not None for child in born.values())
        become_user(spec["uid"], spec["gid"], keep_root=respawns)
        os.write(self.ready, f"{spec['label']} {os.getpid()}\n".encode())
        if spec["zombie"]:
            os._exit(0)
        os.close(self.ready)
        Life(spec, born, log, self.respawn).live()

    def become_program(self, spec: Spec, maps: list[int]) -> None:
        """Goes on as node/program.pl under the program's name; that one reports."""
        program = f"{HOME}/programs/perl/{spec['exe']}"
        if spec["deleted"]:
            copy = f"{HOME}/programs/deleted/{os.uname().nodename}-{os.getpid()}/{spec['exe']}"
            os.makedirs(os.path.dirname(copy))
            os.link(program, copy)
            program = copy
        os.set_inheritable(self.ready, True)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        title = b"".join(word + b"\0" for word in spec["args"])
        facts = [self.ready, spec["label"], title.hex(), spec["comm"].hex(), spec["uid"]]
        facts += [spec["gid"], spec["term"], ":".join(map(str, maps))]
        facts += [f"{STATE}/signals/{os.getpid()}", *SYSCALLS[self.arch]]
        arguments = [program, f"{HOME}/programs/node/program.pl", ",".join(map(str, facts))]
        os.execve(program, arguments, {"PATH": "/usr/bin:/bin"})
