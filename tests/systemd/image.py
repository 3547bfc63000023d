"""The root file system of a systemd node: made once by debootstrap, kept in the user's cache.

It has the release and the apt mirror of the machine, so that the machine's own programs run in it.
Nodes never write to it. Building may not leave a mount behind: it has a mount namespace of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from tests.simfleet import SimFleetError
from tests.simfleet import missing as missing_for_nodes
from tests.simfleet.requirements import SBIN

from .cgroups import cgroups

PACKAGES = (
    "systemd,systemd-sysv,dbus,libpam-systemd,openssh-server,psmisc,procps,util-linux,perl-base,"
    "python3,at,cron"
)
"""at and cron: carriers that start what isn't theirs. libpam-systemd: a login gets its session."""

USERS = {"alice": 1002, "bob": 1003}

MASKED = (
    "ssh.socket apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer"
    " e2scrub_reap.service fstrim.timer logrotate.timer motd-news.timer systemd-networkd.service"
    " systemd-networkd.socket systemd-resolved.service systemd-timesyncd.service"
    " console-getty.service getty.target systemd-tmpfiles-clean.timer"
)
"""The network is the machine's own, and nothing may start by itself while a test looks."""

FINISH = """
set -eu
root=$1; shift
for user in $USERS; do chroot "$root" useradd -m -s /bin/bash -u "${user#*:}" "${user%:*}"; done
ln -sf /run/simnode/state/sshd_config "$root/etc/ssh/sshd_config"
rm -f "$root"/etc/ssh/ssh_host_*
# Each daemon-reload would run them all, for 0.2 s; a node of a test has nothing to generate.
rm -f "$root"/usr/lib/systemd/system-generators/*
for unit in $MASKED; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done
: >"$root/etc/fstab"
# A machine id of its own: without one every boot would run systemd-firstboot and preset all units.
tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man
"""

TOOLS = {"debootstrap": "debootstrap", "systemd-nspawn": "systemd-container"}
"""Command to package."""


def release() -> dict[str, str]:
    """/etc/os-release: ID and VERSION_CODENAME count."""
    path = Path("/etc/os-release")
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key: value.strip("\"'") for key, _, value in pairs}


def missing(tools: tuple[str, ...] = ("systemd-nspawn",)) -> str:
    """One line that says why this machine can't have such a node; empty when it can."""
    if line := missing_for_nodes():
        return line
    if release().get("ID") not in {"debian", "ubuntu"} or "VERSION_CODENAME" not in release():
        return "a node with systemd is made by debootstrap, from Debian or Ubuntu only"
    absent = [TOOLS[tool] for tool in tools if not shutil.which(tool, path=SBIN)]
    if absent:
        return f"a node with systemd needs: apt-get install {' '.join(absent)}"
    try:
        closed = [str(path) for path in cgroups() if not os.access(path, os.W_OK)]
    except SimFleetError as error:
        return str(error)
    return f"a node with systemd needs to write in {closed[0]} (a container?)" if closed else ""


class Image:
    """Lies in $XDG_CACHE_HOME/gpufleet-tests/systemd-node, one folder for each recipe."""

    def __init__(self) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        recipe = f"{PACKAGES}{USERS}{MASKED}{FINISH}".encode()
        mark = hashlib.sha256(recipe).hexdigest()[:8]
        suite = release().get("VERSION_CODENAME", "")
        name = f"{suite}-{platform.machine()}-{mark}"
        self.suite = suite
        self.root = cache.absolute() / "gpufleet-tests/systemd-node" / name

    @property
    def exists(self) -> bool:
        return self.root.is_dir()

    def build(self) -> None:
        """Makes it where it isn't there: one to two minutes and 100 MB from the apt mirror."""
        if line := missing(("debootstrap", "systemd-nspawn")):
            raise SimFleetError(line)
        self.root.parent.mkdir(parents=True, exist_ok=True)
        with (self.root.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.exists:
                return
            fresh = self.root.with_name(f"{self.root.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            self._debootstrap(fresh)
            self._finish(fresh)
            fresh.chmod(0o755)
            fresh.replace(self.root)

    def _debootstrap(self, root: Path) -> None:
        components = "main,universe" if release()["ID"] == "ubuntu" else "main"
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "debootstrap"]
        command += ["--variant=minbase", f"--include={PACKAGES}"]
        command += [f"--components={components}", self.suite, str(root), mirror(self.suite)]
        log = self.root.with_name(f"{self.root.name}.log")
        with log.open("wb") as out:
            done = subprocess.run(
                command,
                check=False,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **proxy(), "PATH": SBIN, "LC_ALL": "C"},
            )
        if done.returncode:
            words = log.read_text(errors="replace").strip().splitlines() or [""]
            raise SimFleetError(f"debootstrap failed: {words[-1]} (see {log})")

    def _finish(self, root: Path) -> None:
        users = " ".join(f"{user}:{uid}" for user, uid in USERS.items())
        subprocess.run(
            ["unshare", "--mount", "/bin/sh", "-c", FINISH, "finish", str(root)],
            check=True,
            stdin=subprocess.DEVNULL,
            env={"PATH": SBIN, "USERS": users, "MASKED": MASKED},
        )


def mirror(suite: str) -> str:
    """Where this machine's apt gets that release from."""
    command = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"]
    command += ["Created-By: Packages", "Component: main"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        found, _, uri = line.partition(" ")
        if found == suite and uri.startswith(("http:", "https:", "file:")):
            return uri
    return ""  # debootstrap's own default


def proxy() -> dict[str, str]:
    """apt's own proxy: debootstrap asks wget, and sudo drops the environment's."""
    found = {}
    for name in ("http", "https"):
        command = ["apt-config", "shell", "found", f"Acquire::{name}::Proxy"]
        text = subprocess.run(command, check=False, capture_output=True, text=True).stdout
        if "'" in text:
            found[f"{name}_proxy"] = text.split("'")[1]
    return found
