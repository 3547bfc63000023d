"""One simulated node: its life, its scene, its faults, and the truth about it.

Knows nothing of the other nodes; `fleet.py` gives it its address, keys and programs.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import threading
from pathlib import Path

from . import faults
from .absence import Absence
from .conversation import Conversation
from .files import remove_tools, write_files, write_tool
from .network import await_listening
from .processes import NodeProcess, descriptors, read_process, read_processes
from .programs import Programs
from .requirements import SBIN, SimFleetError, python_path
from .scene import RunningProcess, Scene, encode, longest_args, program_names, running
from .settings import NODE_PATH, NodeSettings

AnyProcess = RunningProcess | NodeProcess
NAMESPACES = ("--pid", "--mount", "--uts", "--ipc", "--cgroup")


class SimNode:
    """A node with its own processes, devices and sshd. Threads may share it."""

    def __init__(
        self,
        name: str,
        address: str,
        port: int,
        folder: Path,
        programs: Programs,
        settings: NodeSettings,
    ) -> None:
        self.name = name
        self.address = address
        self.port = port
        self.folder = folder
        self.settings = settings
        self.host_pid = 0
        """Pid of the node's init, seen from outside."""
        self._programs = programs
        self._scenes = 0
        self._absence: Absence | None = None
        self._lock = threading.RLock()
        self._init: Conversation | None = None

    def __repr__(self) -> str:
        return f"<SimNode {self.name} {self.address}:{self.port}>"

    # Life

    def prepare(self, authorized_key: str) -> None:
        """Writes the node's files; the host key is already in its folder."""
        write_files(self.folder, self.settings, self.address, self.port, authorized_key)

    def launch(self) -> None:
        """Starts the node without waiting for it; `await_ready` does."""
        users = self.settings.users.items()
        command = [
            *(str(shutil.which("unshare", path=SBIN)), *NAMESPACES, "--fork", "--kill-child"),
            *(python_path(), "-I", "-S", str(self._programs.entry), "setup"),
            *(str(self.folder), str(self._programs.folder), self.name, str(self.settings.gpus)),
            *(python_path(), platform.machine()),
            " ".join(f"{user}:{uid}:{gid}" for user, (uid, gid) in users),
        ]
        self._init = Conversation(self.name, command, self.folder / "node.log")
        self._init.send("sshd start")

    def await_ready(self) -> None:
        line = self.init.line()
        if not line.startswith("ready "):
            raise SimFleetError(f"{self.name}: did not start: {line}")
        self.host_pid = int(line.split()[1])
        self.init.answer()
        self._absence = Absence(self.path("/"), self.settings.gpus, self._run)

    def hang_up(self) -> None:
        """First half of `stop`, so that a fleet's nodes can end at the same time."""
        if self._init is not None:
            self._init.hang_up()

    def stop(self) -> None:
        """Ends the node and everything in it; may be called again."""
        with self._lock:
            init, self._init = self._init, None
        if init is not None:
            init.end()

    @property
    def init(self) -> Conversation:
        if self._init is None:
            raise SimFleetError(f"{self.name}: is not running")
        return self._init

    def request(self, line: str) -> list[str]:
        """One command of node/init.pl and its answer."""
        with self._lock:
            self.init.send(line)
            return self.init.answer()

    # Scene

    def start(self, scene: Scene) -> list[RunningProcess]:
        """Adds the scene's processes; returns them, in its order, when each is what it is to be."""
        with self._lock:
            self.request_start(scene)
            return self.await_start(scene)

    def request_start(self, scene: Scene) -> None:
        """First half of `start`, so that a fleet's nodes can start scenes at the same time."""
        python = Path(python_path()).name
        with self._lock:
            for program in program_names(scene):
                self._programs.add(python if program == "python3" else program)
            self._scenes += 1
            path = self.folder / "scenes" / str(self._scenes)
            path.write_bytes(encode(scene, self.settings.users, python))
            self.init.send(f"spawn {path.name} - {longest_args(scene) + 64}")

    def await_start(self, scene: Scene) -> list[RunningProcess]:
        with self._lock:
            return running(scene, self.init.answer())

    def clear(self, *, keep_sessions: bool = False) -> None:
        """Back to an idle node: ends all processes but sshd's listener, takes all faults back.

        `keep_sessions` spares ssh sessions and what they started.
        """
        self.request("clear keep-sessions" if keep_sessions else "clear")
        self.clear_fault()

    # Faults

    def fault(self, name: str, value: str | bytes | float = "", *, when: str = "") -> None:
        """Sets a fault of the table in faults.py."""
        if name.startswith("no-"):
            self.absence.take(name[3:])
        else:
            value = str(value) if isinstance(value, int | float) else value
            faults.write(self.folder / "faults", name, value, when)

    def clear_fault(self, name: str = "", *, when: str = "") -> None:
        """Takes one fault back; without a name, all of them."""
        if name.startswith("no-"):
            self.absence.give_back(name[3:])
            return
        faults.remove(self.folder / "faults", name, when)
        if not name:
            self.absence.give_all_back()
            remove_tools(self.folder / "bin")

    @property
    def absence(self) -> Absence:
        if self._absence is None:
            raise SimFleetError(f"{self.name}: is not running")
        return self._absence

    def tool(self, name: str, script: str) -> None:
        """Puts a shell script of this name first on the PATH, until all faults are taken back: a
        stand-in, or a tool that hangs."""
        write_tool(self.folder / "bin" / name, script)

    def freeze(self, proc: AnyProcess, *, threads_only: bool = False) -> None:
        """Puts a process in state D, deaf to KILL until `thaw`. `threads_only` leaves its first
        thread alone: killed, that is a zombie at once while the others still hold everything."""
        self.request(f"freeze {proc.pid} {'threads' if threads_only else ''}")

    def thaw(self, proc: AnyProcess) -> None:
        self.request(f"thaw {proc.pid}")

    def kill(self, proc: AnyProcess, name: str = "KILL") -> None:
        """Sends a signal from inside, as the node's root would."""
        self.request(f"kill {name} {proc.pid}")

    # sshd

    def stop_sshd(self) -> None:
        """Connections are refused from now on; sessions go on."""
        self.request("sshd stop")

    def start_sshd(self) -> None:
        self.request("sshd start")
        await_listening([(self.address, self.port)])

    def freeze_sshd(self) -> None:
        """Connections are accepted (by the kernel), but nobody speaks."""
        self.request("sshd freeze")

    def thaw_sshd(self) -> None:
        self.request("sshd thaw")

    def drop_connections(self, *, silently: bool = False) -> None:
        """Kills the sshd's of all sessions, or stops them: then the connection is only silent.
        What the sessions started goes on."""
        for process in self.processes():
            if process.comm.startswith(b"sshd") and b"[listener]" not in b"".join(process.args):
                self.kill(process, "STOP" if silently else "KILL")

    # Truth

    def path(self, inside: str) -> Path:
        """A path in the node, as this process can open it."""
        return Path(f"/proc/{self.host_pid}/root") / inside.lstrip("/")

    def processes(self) -> list[NodeProcess]:
        """All processes in the node, its init and sshd among them, by pid."""
        return read_processes(self.path("/proc"))

    def process(self, proc: AnyProcess) -> NodeProcess | None:
        """The process as it is now; `None` when it is gone, or its pid is another's."""
        found = read_process(self.path("/proc"), proc.pid)
        return found if found and found.start_ticks == proc.start_ticks else None

    def alive(self, proc: AnyProcess) -> bool:
        """The same process, and no zombie."""
        found = self.process(proc)
        return found is not None and found.state not in "ZX"

    def descriptors(self, proc: AnyProcess) -> list[str]:
        """What it has open, by the text of its links."""
        return descriptors(self.path("/proc"), proc.pid)

    def signals_seen(self, proc: RunningProcess) -> list[str]:
        """TERM, HUP and INT that reached a process of a scene, in order. KILL leaves no trace."""
        path = self.folder / "signals" / str(proc.pid)
        return path.read_text().split() if path.exists() else []

    def exec(self, command: str, *, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Runs a shell command in the node as root, beside sshd, with the PATH of a session."""
        nsenter = str(shutil.which("nsenter", path=SBIN))
        return subprocess.run(
            [nsenter, "-t", str(self.host_pid), *NAMESPACES, "/bin/sh", "-c", command],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            stdin=subprocess.DEVNULL,
            env={"PATH": NODE_PATH, "HOME": "/run/home/root", "LC_ALL": "C"},
            timeout=timeout_s,
        )

    def _run(self, command: str) -> None:
        done = self.exec(command)
        if done.returncode:
            raise SimFleetError(f"{self.name}: {command}: {done.stderr.strip()}")
