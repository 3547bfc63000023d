"""A node on this machine: a process namespace with a real sshd on loopback, and the real GPUs.

Starts and ends it, and starts processes in it. May not judge what a reset did.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import paramiko

from gpufleet.policy import Access

HOLD = Path(__file__).with_name("hold.py")
QUERY = ("nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader")

INIT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
cp /etc/passwd /run/passwd
grep -q '^sshd:' /run/passwd || echo 'sshd:x:999:65534::/run/sshd:/usr/sbin/nologin' >>/run/passwd
mount --bind /run/passwd /etc/passwd
exec "$1" -D -e -f "$2"
"""

CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PermitRootLogin yes
StrictModes no
PasswordAuthentication no
PidFile none
SetEnv PATH={path}
"""


def why_not() -> str:
    """Why this machine can't run these tests; "" when it can."""
    if not shutil.which("nvidia-smi"):
        return "no NVIDIA GPU on this machine"
    if subprocess.run(QUERY, capture_output=True, check=False).returncode != 0:
        return "nvidia-smi does not answer on this machine"
    if os.geteuid() != 0:
        return "needs root: a namespace of its own, and a login as root in it"
    if not sshd():
        return "no sshd on this machine: apt-get install openssh-server"
    return ""


def sshd() -> str:
    """$GPUFLEET_TEST_SSHD, or the system's."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    return os.environ.get("GPUFLEET_TEST_SSHD") or shutil.which("sshd", path=path) or ""


class GpuNode:
    """Started on entry, ended with all that runs in it on exit."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-node-"))
        self.port = _free_port()
        self._pids: dict[int, int] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._unshare: subprocess.Popen[bytes] | None = None
        self.init_pid = 0

    def __enter__(self) -> GpuNode:  # noqa: PYI034  # Self is in typing from 3.11 on
        host, user = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
        for name, key in (("host", host), ("user", user)):
            key.write_private_key_file(str(self.folder / name))
        line = f"{user.get_name()} {user.get_base64()}\n"
        (self.folder / "authorized").write_text(line)
        known = f"[127.0.0.1]:{self.port} {host.get_name()} {host.get_base64()}\n"
        (self.folder / "known_hosts").write_text(known)
        config = CONFIG.format(port=self.port, folder=self.folder, path=os.environ["PATH"])
        (self.folder / "sshd_config").write_text(config)
        flags = ("--pid", "--fork", "--mount", "--mount-proc", "--kill-child")
        command = ["sh", "-c", INIT, "init", sshd(), str(self.folder / "sshd_config")]
        with (self.folder / "sshd.log").open("wb") as log:
            self._unshare = subprocess.Popen(["unshare", *flags, *command], stderr=log)
        self._await_sshd()
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        self.init_pid = int(children.read_text().split()[0])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._unshare is not None:
            self._unshare.kill()
            self._unshare.wait()
        for process in self._started:
            process.kill()
            process.wait()
        # Pinned host memory takes seconds to free, and the next test wants idle GPUs.
        deadline = time.monotonic() + 60
        while set(memory_mib()) != {0} and time.monotonic() < deadline:
            time.sleep(0.2)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def access(self) -> Access:
        return Access(
            "127.0.0.1",
            port=self.port,
            identity_file=(str(self.folder / "user"),),
            known_hosts=(str(self.folder / "known_hosts"),),
        )

    def start(self, *command: str, stdin: str = "/dev/null") -> subprocess.Popen[bytes]:
        """A process in the node; its handle ends with it."""
        enter = ("nsenter", "-t", str(self.init_pid), "-p", "-m", "--")
        with Path(stdin).open("rb") as source:
            process = subprocess.Popen(
                [*enter, *command], stdin=source, start_new_session=True, cwd="/"
            )
        self._started.append(process)
        return process

    def hold(
        self, gpu: int, device_mib: int, pinned_mib: int = 0, *words: str, title: str = "python3"
    ) -> subprocess.Popen[bytes]:
        """A process that holds memory, once it does; `title` is what it calls itself."""
        ready = self.folder / f"ready{len(self._started)}"
        numbers = (str(gpu), str(device_mib), str(pinned_mib))
        script = ["exec", "-a", title, sys.executable, str(HOLD), str(ready), *numbers, *words]
        process = self.start("bash", "-c", 'exec -a "$0" "$@"', title, *script[3:])
        deadline = time.monotonic() + 120
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{title} did not come to hold memory")
            time.sleep(0.05)
        self._pids[process.pid] = int(ready.read_text() or 0)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """KILL to the process itself: its handle is that of the program that entered the node."""
        self.start("kill", "-9", str(self._pids[process.pid])).wait()
        process.wait()

    def _await_sshd(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"sshd does not listen: {(self.folder / 'sshd.log').read_text()}")


def memory_mib() -> list[int]:
    """MiB in use on each GPU, as nvidia-smi says outside of the node."""
    rows = subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout
    return [int(row.split(", ")[1].split()[0]) for row in rows.splitlines()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
