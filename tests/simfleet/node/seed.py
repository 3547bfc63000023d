"""Starts a scene's processes inside a node, says which they are, and ends.

    seed FILE LABEL ARCH PADDING   ->   "proc sched0 31 88412 31 - 0" for each, then "done"

A line holds label, pid, start time in ticks, the pid of its root process, the delay after which
init starts it again, and for how many seconds init has to delay its death. PADDING is room for the
longest command line. Python processes are forks of this one, others a copy of perl.
"""

# pathlib takes 8 ms to load
# ruff: noqa: PTH106, PTH108, PTH115, PTH120, PTH123

from __future__ import annotations

import marshal
import os
import select
import sys
import time

from .birth import Family
from .linux import STATE, own, start_ticks

TYPE_CHECKING = False  # as typing's, which takes 12 ms to load
if TYPE_CHECKING:
    from typing import Any

    Spec = dict[str, Any]

READY_S = 30.0


class SceneError(Exception):
    """The scene can't be built; one line."""


class Seed:
    """One call: which processes of the scene are to be started, and what became of them."""

    def __init__(self, specs: list[Spec], label: str, arch: str) -> None:
        self.specs = {spec["label"]: spec for spec in specs}
        self.roots = [
            spec["label"]
            for spec in specs
            if (spec["parent"] is None if label == "-" else spec["label"] == label)
        ]
        self.family = Family(specs, arch)
        self.pids: dict[str, int] = {}

    def tree(self, label: str) -> list[str]:
        children = [spec["label"] for spec in self.specs.values() if spec["parent"] == label]
        return [label, *(deep for child in children for deep in self.tree(child))]

    def start(self) -> list[str]:
        """Forks all, waits until each is what it should be, gives them their owners."""
        ready, self.family.ready = os.pipe()
        self.family.reader = ready
        roots = {label: self.family.fork(self.specs[label]) for label in self.roots}
        os.close(self.family.ready)
        trees = {label: self.tree(label) for label in self.roots}
        wanted = {
            label for tree in trees.values() for label in tree if not self.specs[label]["dead"]
        }
        self.await_ready(ready, wanted)
        return [
            self.finish(self.specs[label], roots[root])
            for root, tree in trees.items()
            for label in tree
            if label in wanted
        ]

    def await_ready(self, ready: int, wanted: set[str]) -> None:
        missing = set(wanted)
        text = b""
        until = time.monotonic() + READY_S
        while missing:
            if not select.select([ready], [], [], max(0.0, until - time.monotonic()))[0]:
                raise SceneError(f"not ready: {sorted(missing)}")
            got = os.read(ready, 65536)
            if not got:
                raise SceneError(f"ended before it was ready: {sorted(missing)}")
            *lines, text = (text + got).split(b"\n")
            for line in lines:
                if line.startswith(b"!"):
                    raise SceneError(line[1:].decode())
                label, pid = line.decode().split()
                self.pids[label] = int(pid)
                missing.discard(label)

    def finish(self, spec: Spec, root: int) -> str:
        pid = self.pids[spec["label"]]
        if spec["owner"] and not spec["zombie"]:
            own(pid, spec["owner"])
        if spec["deleted"]:
            program = os.readlink(f"/proc/{pid}/exe")
            os.unlink(program)
            os.rmdir(os.path.dirname(program))
        delay = "-" if spec["parent"] is not None or spec["respawn"] is None else spec["respawn"]
        return f"proc {spec['label']} {pid} {start_ticks(pid)} {root} {delay} {spec['dying']}"


def main(arguments: list[str]) -> None:
    file_name, label, arch, _ = arguments
    with open(f"{STATE}/scenes/{file_name}", "rb") as file:
        specs = marshal.load(file)
    try:
        answer = [*Seed(specs, label, arch).start(), "done"]
    except SceneError as error:
        answer = [f"error {error}"]
    sys.stdout.write("\n".join(answer) + "\n")
