"""known_hosts files: read once, looked up in constant time; and the policy that follows from them.

Own reader, because paramiko's stops at @-marked or odd lines, is quadratic, and rewrites files.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hmac
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import paramiko

from gpufleet.errors import Unreachable
from gpufleet.policy import Access

SYSTEM_FILES = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True)
class Entry:
    """One key of one line: where it stands, its type as written there, and its bytes."""

    file: str
    line: int
    key_type: str
    blob: bytes
    revoked: bool = False


class KnownHosts:
    """All entries of some files. Safe to share between threads once made.

    A line that can't be read is left out and told in `warnings`, as OpenSSH does; it never makes a
    host known. `@cert-authority` lines are left out too: host certificates aren't supported.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self.warnings: list[str] = []
        self._plain: dict[str, list[Entry]] = {}
        self._hashed: list[tuple[bytes, bytes, Entry]] = []
        self._patterns: list[tuple[tuple[str, ...], Entry]] = []
        for file in files:
            self._read(file)

    def lookup(self, name: str) -> list[Entry]:
        """Entries for `name` (`host` or `[host]:port`), in no particular order."""
        found = list(self._plain.get(name, ()))
        found += [
            entry
            for salt, digest, entry in self._hashed
            if hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
        ]
        found += [entry for patterns, entry in self._patterns if _matches(name, patterns)]
        return found

    def _read(self, file: str) -> None:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            self.warnings.append(f"{file}: cannot be read: {error.strerror}")
            return
        for number, line in enumerate(text.split("\n"), 1):
            stripped = line.strip()
            if stripped and not stripped.startswith("#"):
                self._take(file, number, stripped.split())

    def _take(self, file: str, number: int, words: list[str]) -> None:
        marker = words.pop(0) if words[0].startswith("@") else ""
        if marker == "@cert-authority":
            self.warnings.append(f"{file}:{number}: @cert-authority is not supported, left out")
            return
        try:
            names, key_type, key, *_ = words
            entry = Entry(
                file, number, key_type, base64.b64decode(key, validate=True), bool(marker)
            )
            hashed = [base64.b64decode(part) for part in names.split("|")[2:4]]
        except (ValueError, binascii.Error):
            self.warnings.append(f"{file}:{number}: unreadable line, left out")
            return
        if marker not in {"", "@revoked"} or (names.startswith("|") and len(hashed) != 2):
            self.warnings.append(f"{file}:{number}: unreadable line, left out")
        elif names.startswith("|1|"):
            self._hashed.append((hashed[0], hashed[1], entry))
        elif any(char in names for char in "*?!"):
            self._patterns.append((tuple(names.lower().split(",")), entry))
        else:
            for name in names.lower().split(","):
                self._plain.setdefault(name, []).append(entry)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """OpenSSH's list: any match counts, a negated match refuses. `[` is literal there."""
    if any(p.startswith("!") and _fits(name, p[1:]) for p in patterns):
        return False
    return any(_fits(name, p) for p in patterns if not p.startswith("!"))


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def known_host_files(access: Access) -> tuple[str, ...]:
    """The configured files, else the user's and the system's; the first is the one to add to."""
    if access.known_hosts:
        return access.known_hosts
    home = os.path.expanduser("~")
    return (f"{home}/.ssh/known_hosts", f"{home}/.ssh/known_hosts2", *SYSTEM_FILES)


@cache
def known_hosts(files: tuple[str, ...]) -> KnownHosts:
    """Read once per run and set of files."""
    return KnownHosts(files)


def host_name(access: Access) -> str:
    """`host`, or `[host]:port` for other ports, as known_hosts writes them."""
    host = access.address.lower()
    return host if access.port == 22 else f"[{host}]:{access.port}"


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Accepts the server's key or raises `Unreachable` at stage host-key, by `access.host_keys`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._files = known_host_files(access)
        self._store = known_hosts(self._files)
        self._name = host_name(access)
        self._entries = self._store.lookup(self._name)

    def key_types(self, offered: Sequence[str]) -> tuple[str, ...]:
        """Of the algorithms `offered`, those for which a key is known; all where none is.

        A server asked for another type than the known one would show a key that looks changed.
        """
        if self._access.host_keys == "off":
            return tuple(offered)
        known = {entry.key_type for entry in self._entries if not entry.revoked}
        if "ssh-rsa" in known:  # the key's type; rsa-sha2-* are the algorithms that use it
            known |= {"rsa-sha2-256", "rsa-sha2-512"}
        return tuple(kind for kind in offered if kind in known) or tuple(offered)

    def missing_host_key(
        self, _client: paramiko.SSHClient, _hostname: str, key: paramiko.PKey
    ) -> None:
        """Called with the server's key before anything is sent that needs trust."""
        blob, kind = key.asbytes(), key.get_name()
        same = [entry for entry in self._entries if entry.blob == blob]
        if any(entry.revoked for entry in same):
            raise self._refused(f"host key of {self._name} is revoked ({_where(same[0])})", "")
        if self._access.host_keys == "off" or same:
            return
        others = [entry for entry in self._entries if not entry.revoked]
        if others:
            raise self._refused(
                f"host key changed: {self._name} shows another {kind} key than {_where(others[0])}",
                f"ssh-keygen -R '{self._name}' -f {others[0].file}  # only if the node was reinstalled",
            )
        if self._access.host_keys == "accept-new":
            self._remember(f"{self._name} {kind} {base64.b64encode(blob).decode()}\n")
            return
        port = f"-p {self._access.port} " if self._access.port != 22 else ""
        raise self._refused(
            f"host key not known: {self._name} shows {kind} {key.fingerprint}, and "
            f"{self._files[0]} has no entry for it",
            f"ssh-keyscan {port}{self._access.address} >> {self._files[0]}  # then compare the "
            "fingerprint, or use host_keys: accept-new",
        )

    def _remember(self, line: str) -> None:
        """One line appended under a lock: parallel runs and threads never mix or lose lines."""
        path = Path(self._files[0])
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("ab") as file, contextlib.ExitStack() as unlocking:
                fcntl.flock(file, fcntl.LOCK_EX)
                unlocking.callback(fcntl.flock, file, fcntl.LOCK_UN)
                file.write(line.encode())
                file.flush()
        except OSError as error:
            raise self._refused(
                f"cannot add the new host key to {path}: {error.strerror}", f"ls -l {path}"
            ) from error

    def _refused(self, reason: str, next_step: str) -> Unreachable:
        return Unreachable("host-key", reason, next_step=next_step)


def _where(entry: Entry) -> str:
    return f"{entry.file}:{entry.line}"


__all__ = ["HostKeyPolicy", "KnownHosts", "host_name", "known_hosts"]
