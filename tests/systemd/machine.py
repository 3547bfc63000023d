"""One node with a real systemd: its life, its units, and the truth about it, read from outside.

It shares the machine's network and listens on a loopback address of its own. What it writes is kept
in memory and goes with it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from tests.simfleet import NodeProcess, NodeSettings, SimFleetError
from tests.simfleet.absence import DEVICES
from tests.simfleet.files import write_files
from tests.simfleet.keys import Keys
from tests.simfleet.network import Lease, await_listening
from tests.simfleet.processes import descriptors, read_process, read_processes
from tests.simfleet.programs import Programs
from tests.simfleet.requirements import SBIN
from tests.simfleet.settings import NODE_PATH

from .cgroups import cgroups
from .image import Image, missing
from .units import DAEMONS, MODULES

HERE = Path(__file__).parent
BOOT_S = 60.0
"""Long, because the machine may be busy; alone it takes two seconds."""


class Machine:
    """Boots on entry, ends on exit."""

    name = "gpu01"

    def __init__(self, gpus: int = 8) -> None:
        self.folder = Path()
        self.host_pid = 0
        """Pid of systemd, seen from outside."""
        self._gpus = gpus
        self._keeper: subprocess.Popen[str] | None = None
        self._lease: Lease | None = None
        self._cgroups: list[Path] = []
        self._units: list[str] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # Life

    def start(self) -> None:
        """Returns when systemd is up and sshd listens; SimFleetError when that doesn't come."""
        image = Image()
        if line := missing():
            raise SimFleetError(line)
        if not image.exists:
            raise SimFleetError("no root file system yet: make test-systemd builds it")
        self.folder = Path(tempfile.mkdtemp(prefix="gpufleet-systemd-"))
        atexit.register(self.stop)
        try:
            self._write_files()
            self._boot(image)
            self._make_devices()
            self._await_boot()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends it and checks that nothing is left; may be called again."""
        atexit.unregister(self.stop)
        keeper, self._keeper = self._keeper, None
        if self._lease is not None:
            self._lease.give_back()
            self._lease = None
        if keeper is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()
        left = [str(path) for path in (self.folder, *self._cgroups) if path.exists()]
        if left or Path(f"/proc/{self.host_pid}/ns").exists():
            raise SimFleetError(f"the node left something: {left} or pid {self.host_pid}")

    def _write_files(self) -> None:
        self.folder.chmod(0o755)
        self._lease = Lease()
        self.address, self.port = self._lease.address(0), self._lease.port
        self.keys = Keys(self.folder, [self.name])
        self.keys.make()
        self.keys.write_known_hosts({self.name: (self.address, self.port)})
        settings = NodeSettings(gpus=self._gpus, sshd_lines=("UsePAM yes",))
        self._state = self.folder / self.name
        write_files(self._state, settings, self.address, self.port, self.keys.authorized)
        for name in ("ready", "memory"):
            (self._state / name).mkdir(exist_ok=True)
            (self._state / name).chmod(0o777)  # for users' services
        programs = Programs(self.folder / "programs")
        programs.make()
        for program, _ in DAEMONS.values():
            programs.add(program)
        for path in (HERE / "node").iterdir():
            if path.is_file():
                shutil.copyfile(path, programs.folder / "node" / path.name)
        for module in MODULES:
            path = programs.folder / "jobs" / module
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("import sys; sys.path.insert(0, '/run/simnode/programs/node')\n")
            with path.open("a") as file:
                file.write("import job; job.main()\n")

    def _boot(self, image: Image) -> None:
        tag = f"gpufleet-test-{os.getpid()}-{time.monotonic_ns() % 10**6}"
        self._cgroups = [parent / tag for parent in cgroups()]
        command = [
            *("systemd-nspawn", "-D", str(image.root), "--boot", "--quiet"),
            *("--read-only", "--volatile=overlay"),  # writes go to a tmpfs; others may boot it too
            *("--register=no", "--keep-unit", "--console=pipe"),
            *(f"--machine={tag}", f"--hostname={self.name}"),
            *("--link-journal=no", "--resolv-conf=off", "--timezone=off"),
            f"--bind={self._state}:/run/simnode/state",
            f"--bind-ro={self.folder}/programs:/run/simnode/programs",
        ]
        self._keeper = subprocess.Popen(
            [
                *("/bin/sh", str(HERE / "keeper.sh"), str(self.folder)),
                *(" ".join(map(str, self._cgroups)), *command),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # ^C is for the owner, who then ends the node
            text=True,
            # Version 2 in the node even where the machine has both, as all that is sold today.
            env={"PATH": SBIN, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )
        assert self._keeper.stdout is not None
        nspawn = self._keeper.stdout.readline().strip()
        if not nspawn:
            raise SimFleetError("no control group for the node can be made here")
        children = Path(f"/proc/{nspawn}/task/{nspawn}/children")

        def booted() -> bool:
            try:
                pids = children.read_text().split()
                self.host_pid = next(
                    int(pid) for pid in pids if read_inner_pid(pid) == 1 and is_systemd(pid)
                )
            except (OSError, StopIteration):
                return False
            return self.path("/run/systemd/system").is_dir()

        self._await(booted, "systemd doesn't come up", alive=Path(f"/proc/{nspawn}/exe"))

    def _await_boot(self) -> None:
        def up() -> bool:
            state = self.exec("systemctl is-system-running").stdout.strip()
            return state in {"running", "degraded"}

        self._await(up, "systemd doesn't finish its start")
        await_listening([(self.address, self.port)], BOOT_S)

    def _await(self, test: Callable[[], bool], what: str, alive: Path | None = None) -> None:
        until = time.monotonic() + BOOT_S
        while not test():
            ended = alive is not None and not os.path.lexists(alive)
            if ended or time.monotonic() > until:
                log = self.folder / "boot.log"
                words = log.read_text(errors="replace").strip() if log.exists() else ""
                raise SimFleetError(f"{what}: {words[-300:]}")
            time.sleep(0.02)

    def _make_devices(self) -> None:
        for name in (*(f"nvidia{gpu}" for gpu in range(self._gpus)), *DEVICES):
            path = self.path(f"/dev/{name}")
            os.mknod(path, 0o20666, os.makedev(1, 5))
            path.chmod(0o666)  # whatever the umask

    # Units

    def write(self, name: str, text: str) -> None:
        """Writes a unit file; systemd knows it at once."""
        self.path(f"/etc/systemd/system/{name}").write_text(text)
        self._units.append(name)
        self.systemctl("daemon-reload")

    def start_unit(self, name: str, text: str = "") -> NodeProcess:
        """Starts a service and waits until its stand-in holds what it is to hold; its main process."""
        if text:
            self.write(name, text)
        self.systemctl(f"start -- '{name}'")
        return self.await_main(name)

    def await_main(self, name: str, *, other_than: int = 0, timeout_s: float = 10.0) -> NodeProcess:
        """The ready main process of a service, once that isn't `other_than` any more."""
        until = time.monotonic() + timeout_s
        while True:
            pid = int(self.show(name, "MainPID") or 0)
            ready = pid not in {0, other_than} and self._is_ready(pid)
            if ready and (found := read_process(self.path("/proc"), pid)):
                return found
            if time.monotonic() > until:
                raise SimFleetError(f"{name}: no main process: {self.status_text(name)}")
            time.sleep(0.01)

    def await_process(self, words: str, timeout_s: float = 10.0) -> NodeProcess:
        """A ready process by a part of its command line, whoever started it."""
        until = time.monotonic() + timeout_s
        while True:
            for process in self.processes():
                if words.encode() in b" ".join(process.args) and self._is_ready(process.pid):
                    return process
            if time.monotonic() > until:
                raise SimFleetError(f"no process {words!r}")
            time.sleep(0.01)

    def await_unready(self, program: str, timeout_s: float = 10.0) -> NodeProcess:
        """A process by its program's name that is no stand-in, so never says that it is ready."""
        until = time.monotonic() + timeout_s
        while True:
            for process in self.processes():
                if process.args and process.args[0] == program.encode():
                    return process
            if time.monotonic() > until:
                raise SimFleetError(f"no process {program!r}")
            time.sleep(0.01)

    def show(self, name: str, key: str) -> str:
        """systemd's own word on a unit, as `ActiveState`."""
        return self.exec(f"systemctl show --value --property={key} -- '{name}'").stdout.strip()

    def systemctl(self, arguments: str) -> str:
        done = self.exec(f"systemctl {arguments}")
        if done.returncode:
            raise SimFleetError(f"systemctl {arguments}: {done.stderr.strip()}")
        return done.stdout

    def status_text(self, name: str) -> str:
        return self.exec(f"systemctl status --no-pager --full -- '{name}'").stdout[-600:]

    def clear(self) -> None:
        """Removes the units written since, ends what they, `at` and logins started."""
        names = " ".join(f"'{name}'" for name in self._units)
        script = [
            f"systemctl --no-reload disable -q -- {names}",
            # First the signal, so that no ExecStopPost= is waited for.
            f"systemctl kill -s KILL -- {names}; systemctl stop -- {names}",
            f"cd /etc/systemd/system && rm -f -- {names}",
        ]
        self._units.clear()
        # Not run-*.mount: /run/simnode is among them.
        script += [
            "systemctl stop 'user@*.service' 'session-*.scope' 'run-*.service' 'run-*.scope'"
        ]
        script += ["rm -rf /var/lib/systemd/linger/* /home/*/.config"]
        script += ["systemctl daemon-reload", "systemctl reset-failed"]
        script += [f"kill -KILL {p.pid}" for p in self.processes() if self._is_ready(p.pid)]
        self.exec("\n".join(script))
        for path in (self._state / "ready").iterdir():
            path.unlink()

    # Logins

    def login(self, command: str, user: str = "root") -> subprocess.Popen[str]:
        """A real login over sshd that runs a command; the caller ends it."""
        known = f"UserKnownHostsFile={self.keys.known_hosts}"
        return subprocess.Popen(
            [
                *("ssh", "-F", "none", "-o", known, "-o", "BatchMode=yes"),
                *("-i", str(self.keys.identity), "-p", str(self.port)),
                *(f"{user}@{self.address}", command),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run_as(self, user: str, command: str) -> str:
        login = self.login(command, user)
        out, err = login.communicate(timeout=30)
        if login.returncode:
            raise SimFleetError(f"{user}: {command}: {err.strip()}")
        return out

    # Truth

    def path(self, inside: str) -> Path:
        """A path in the node, as this process can open it."""
        return Path(f"/proc/{self.host_pid}/root") / inside.lstrip("/")

    def processes(self) -> list[NodeProcess]:
        return read_processes(self.path("/proc"))

    def of_unit(self, name: str) -> list[NodeProcess]:
        """The living processes whose control group ends in this unit."""
        return [p for p in self.processes() if p.owner.endswith(f"/{name}") and p.state not in "ZX"]

    def alive(self, process: NodeProcess) -> bool:
        """The same process, and no zombie."""
        now = read_process(self.path("/proc"), process.pid)
        same = now is not None and now.start_ticks == process.start_ticks
        return same and now is not None and now.state not in "ZX"

    def descriptors(self, process: NodeProcess) -> list[str]:
        return descriptors(self.path("/proc"), process.pid)

    def exec(self, command: str, *, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Runs a shell command in the node as root, beside all units."""
        return subprocess.run(
            [
                *(str(shutil.which("nsenter", path=SBIN)), "-t", str(self.host_pid)),
                *("--pid", "--mount", "--uts", "--ipc", "--cgroup", "/bin/sh", "-c", command),
            ],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            stdin=subprocess.DEVNULL,
            env={"PATH": NODE_PATH, "HOME": "/root", "LC_ALL": "C"},
            timeout=timeout_s,
        )

    def _is_ready(self, pid: int) -> bool:
        return (self._state / "ready" / str(pid)).exists()


def read_inner_pid(pid: str) -> int:
    """The pid that a process has in its own namespace."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def is_systemd(pid: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "systemd"
