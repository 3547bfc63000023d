"""The truth about a node, from outside: its memory, its holders, what nvidia-smi was heard to say.

Reads the node's folder and /proc; nothing of gpufleet's is asked. Times are seconds since boot, as
/proc/uptime and a process's start time count them.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.simfleet import NodeProcess, SimNode

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DEVICE = re.compile(r"/dev/(nvidia\S*)")


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def born_s(process: NodeProcess) -> float:
    """When a process began; cut to hundredths, as the kernel tells it."""
    return process.start_ticks / TICKS_PER_S


@dataclass(frozen=True)
class Held:
    """Memory of one GPU: who stands for it, and since when."""

    gpu: int
    mib: int
    since_s: float
    who: str


def memory_held(node: SimNode) -> list[Held]:
    """The stand-in's own state, read without it: FIFOs of living holders, deaths with a lag, faults."""
    return [*_of_processes(node.folder, now_s()), *_of_faults(node.folder / "faults")]


def _of_processes(folder: Path, now: float) -> Iterator[Held]:
    lag_file = folder / "faults" / "lag"
    least, set_s = 0.0, 0.0
    with contextlib.suppress(FileNotFoundError):
        least, set_s = float(lag_file.read_text()), _written_s(lag_file)
    dead = {path.name: path for path in (folder / "dead").iterdir() if path.suffix != ".new"}
    names = {path.name for path in (folder / "memory").iterdir() if path.name[0] != "."}
    for name in sorted(names | set(dead)):
        identity, lag, sizes, _ = name.split(";")
        pid, _, ticks = identity.partition("-")
        since = int(ticks) / TICKS_PER_S
        if name in dead:
            died = float(_read(dead[name]) or 0)
            held = now - died < max(least, float(lag))
            if set_s > died + float(lag):
                since = set_s  # it was free, and the fault brought it back
        else:
            held = _has_writer(folder / "memory" / name)
        for size in sizes.split(",") if held else ():
            gpu, _, mib = size.partition("=")
            yield Held(int(gpu), int(mib), since, f"pid {pid}")


def _of_faults(folder: Path) -> Iterator[Held]:
    """idle3 and stuck3: since their file is there."""
    for path in folder.iterdir():
        match = re.fullmatch(r"(?:idle|stuck)(\d+)(~.*)?", path.name)
        with contextlib.suppress(FileNotFoundError):
            if match and (mib := int(path.read_text() or 0)):
                yield Held(int(match[1]), mib, _written_s(path), f"fault {path.name}")


def _written_s(path: Path) -> float:
    return path.stat().st_mtime - time.time() + now_s()


def _has_writer(fifo: Path) -> bool:
    try:
        fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False  # buried meanwhile
    try:
        return os.read(fd, 1) != b""
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def _read(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    return ""


@dataclass
class Call:
    """One call of nvidia-smi: when, by which exec (its session), what it said; `said` False: killed."""

    session: int
    args: str
    start_s: float
    end_s: float = 0.0
    said: bool = False
    status: str = ""
    stdout: str = ""
    stderr: str = ""

    @property
    def of_memory(self) -> bool:
        """Alone, or with health beside it, unless that was refused: then memory is asked alone."""
        together = "--query-gpu=index,memory.used," in self.args
        return self._memory_alone or (together and not (self.said and self.status != "0"))

    @property
    def of_health(self) -> bool:
        return self.args.startswith("--query-gpu=") and not self._memory_alone

    @property
    def _memory_alone(self) -> bool:
        return "--query-gpu=index,memory.used " in self.args


@dataclass
class Record:
    """All that the stand-ins noted since the round began. `units`: when systemctl was asked, of what."""

    calls: list[Call] = field(default_factory=list)
    units: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)

    def sessions(self) -> dict[int, list[Call]]:
        """Calls of each exec, in order of time."""
        found: dict[int, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.session, []).append(call)
        return found


def read_record(node: SimNode) -> Record:
    record = Record()
    open_calls: dict[str, Call] = {}
    for line in _read(node.folder / "told/calls").splitlines():
        pid, session, uptime, verb, *rest = line.split(" ")
        if verb == "ask":
            args = bytes.fromhex(rest[0] if rest else "").decode()
            open_calls[pid] = Call(int(session), args, float(uptime))
            record.calls.append(open_calls[pid])
        elif call := open_calls.pop(pid, None):
            texts = [_decoded(text) for text in rest[1:3]]
            call.said, call.end_s, call.status = True, float(uptime), rest[0]
            call.stdout, call.stderr = texts
    for line in _read(node.folder / "told/units").splitlines():
        uptime, *names = line.split()
        record.units.append((float(uptime), tuple(names)))
    return record


def _decoded(text: str) -> str:
    return "" if text == "-" else bytes.fromhex(text).decode("utf-8", "replace")


def holds_gpu(node: SimNode, process: NodeProcess) -> bool:
    """Has a GPU device open or mapped, in whatever mount namespace."""
    with contextlib.suppress(OSError):
        if any(DEVICE.search(text) for text in node.descriptors(process)):
            return True
        maps = node.path(f"/proc/{process.pid}/maps").read_text(errors="replace")
        return DEVICE.search(maps) is not None
    return False


@dataclass(frozen=True)
class Snapshot:
    """The node at one moment, taken at `at_s` (begin of the reading)."""

    at_s: float
    processes: tuple[NodeProcess, ...]
    memory: tuple[Held, ...]
    holders: frozenset[int]
    record: Record

    def alive(self, pid: int, start_ticks: int) -> bool:
        return any(
            p.pid == pid and p.start_ticks == start_ticks and p.state not in "ZX"
            for p in self.processes
        )


def take_snapshot(node: SimNode) -> Snapshot:
    at_s = now_s()
    memory = tuple(memory_held(node))
    processes = tuple(node.processes())
    holders = frozenset(p.pid for p in processes if p.state not in "ZX" and holds_gpu(node, p))
    return Snapshot(at_s, processes, memory, holders, read_record(node))
