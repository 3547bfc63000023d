"""An sshd of the test's own, to jump through: started in the foreground, counted from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from gpufleet.policy import Access
from tests.simfleet.network import Lease, await_listening

SSHD = str(shutil.which("sshd", path="/usr/sbin:/usr/bin"))


def keygen(path: Path) -> str:
    """Makes a key; its public line."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path.with_suffix(".pub").read_text().strip()


class Bastion:
    """`with Bastion(key) as bastion`: lets `key` in as `user`; forwards, as sshd does by default."""

    def __init__(
        self,
        public_key: str,
        lines: Sequence[str] = (),
        *,
        address: str = "",
        port: int = 0,
        run_in: Sequence[str] = (),
    ) -> None:
        """`run_in`: a command that puts sshd elsewhere (a network namespace)."""
        self._lease = Lease()
        self.address = address or self._lease.address(0)
        self.port = port or self._lease.port
        self.folder = Path(tempfile.mkdtemp(prefix="bastion-"))
        self.host_key = keygen(self.folder / "host")
        (self.folder / "authorized").write_text(public_key)
        # The first of a kind counts, so the caller's lines come first; the rest is sshd's default.
        (self.folder / "sshd_config").write_text(
            "\n".join(
                [
                    *lines,
                    f"ListenAddress {self.address}:{self.port}",
                    f"HostKey {self.folder}/host",
                    f"AuthorizedKeysFile {self.folder}/authorized",
                    "StrictModes no",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "PidFile none",
                    "LogLevel VERBOSE",
                    "",
                ]
            )
        )
        self._run_in = run_in
        self._sshd: subprocess.Popen[bytes] | None = None

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
        self._lease.give_back()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        command = [SSHD, "-D", "-f", f"{self.folder}/sshd_config", "-E", f"{self.folder}/log"]
        self._sshd = subprocess.Popen([*self._run_in, *command], stdin=subprocess.DEVNULL)
        if not self._run_in:
            await_listening([(self.address, self.port)])

    def stop(self) -> None:
        if self._sshd is not None:
            self.kill_connections()
            self._sshd.kill()
            self._sshd.wait()
            self._sshd = None

    def kill_connections(self) -> None:
        """The listener stays."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Connections are accepted (by the kernel), and nobody speaks."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._sshd is not None
        self._sshd.send_signal(number)

    def processes(self) -> list[int]:
        """All below the listener: a privileged one for each connection, and its children."""
        assert self._sshd is not None
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text()
                except OSError:
                    continue
                parent = int(stat.rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
        found: list[int] = []
        below = [self._sshd.pid]
        while below:
            children = parents.get(below.pop(), [])
            found += children
            below += children
        return found

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    @property
    def logins(self) -> list[str]:
        """The users that were let in, in order."""
        return [
            line.split("publickey for ")[1].split()[0]
            for line in self.log.splitlines()
            if "Accepted publickey for " in line
        ]

    @property
    def connections(self) -> int:
        """That came, let in or not."""
        return self.log.count("Connection from ")

    @property
    def known_line(self) -> str:
        return f"[{self.address}]:{self.port} {self.host_key}\n"

    def access(self, key: Path, known: Path, **more: object) -> Access:
        settings = {"identity_file": (str(key),), "known_hosts": (str(known),), **more}
        return Access(self.address, port=self.port, **settings)  # type: ignore[arg-type]


def wait_until(condition: object, seconds: float = 20.0) -> bool:
    """Polls; generous, for a machine under load."""
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
