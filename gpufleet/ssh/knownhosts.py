"""known_hosts files: read once, looked up by name. Own reader, because paramiko's stops at @-marked
or odd lines, is quadratic, knows no patterns, and rewrites the file when asked to add to it.

Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import threading
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

from gpufleet.records import dataclass
from gpufleet.ssh.target import Target

Marker = Literal["", "revoked", "cert-authority"]
_MARKERS: dict[str, Marker] = {"@revoked": "revoked", "@cert-authority": "cert-authority"}


SYSTEM_FILES = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


def known_host_files(target: Target) -> tuple[str, ...]:
    """The configured files, else the user's and the system's; the first is the one to add to."""
    if target.access.known_hosts:
        return target.access.known_hosts
    home = os.path.expanduser("~")
    user = target.user_known_hosts or (f"{home}/.ssh/known_hosts", f"{home}/.ssh/known_hosts2")
    system = SYSTEM_FILES if target.system_known_hosts is None else target.system_known_hosts
    return tuple(file for file in (*user, *system) if file != "none")


@dataclass(frozen=True)
class Entry:
    """One key of one line: where it stands, its type as written there, and its bytes."""

    file: str
    line: int
    key_type: str
    blob: bytes
    marker: Marker = ""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


class KnownHosts:
    """All entries of some files. Safe to share between threads.

    A line that can't be read is left out and told in `warnings`, as `file:line: what`; it never makes
    a host known. A name costs one look into a table, and one HMAC for each hashed line (each has a
    salt of its own), once per run.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self.warnings: list[str] = []
        self._lock = threading.Lock()
        self._plain: dict[str, list[Entry]] = {}
        self._hashed: list[tuple[bytes, bytes, Entry]] = []
        self._patterns: list[tuple[tuple[str, ...], Entry]] = []
        self._answers: dict[str, list[Entry]] = {}
        for file in files:
            self._read(file)

    def lookup(self, name: str) -> list[Entry]:
        """Entries for `name` (`host` or `[host]:port`, lower case), in no particular order."""
        with self._lock:
            if name not in self._answers:
                self._answers[name] = self._search(name)
            return [*self._answers[name]]

    def add(self, name: str, entry: Entry) -> None:
        """Take in a key that was just written to a file."""
        with self._lock:
            self._plain.setdefault(name, []).append(entry)
            self._answers.pop(name, None)

    def _search(self, name: str) -> list[Entry]:
        found = list(self._plain.get(name, ()))
        text = name.encode()
        found += [
            entry
            for salt, digest, entry in self._hashed
            if hmac.digest(salt, text, "sha1") == digest
        ]
        found += [entry for patterns, entry in self._patterns if _matches(name, patterns)]
        return found

    def _read(self, file: str) -> None:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self.warnings.append(f"{file}: cannot be read: {error.strerror}")
            return
        for number, line in enumerate(text.split("\n"), 1):
            words = line.split()
            if words and not words[0].startswith("#") and not self._take(file, number, words):
                self.warnings.append(f"{file}:{number}: unreadable line, left out")

    def _take(self, file: str, number: int, words: list[str]) -> bool:
        """False for a line that isn't one."""
        marker: Marker = ""
        if words[0].startswith("@"):
            if words[0] not in _MARKERS:
                return False
            marker = _MARKERS[words.pop(0)]
        try:
            names, key_type, key, *_ = words
            blob = base64.b64decode(key, validate=True)
        except (ValueError, binascii.Error):
            return False
        if _type_in(blob) != key_type:
            return False
        entry = Entry(file, number, key_type, blob, marker)
        if names.startswith("|"):
            return self._take_hashed(names, entry)
        if any(char in names for char in "*?!"):
            self._patterns.append((tuple(names.lower().split(",")), entry))
        else:
            for name in names.lower().split(","):
                self._plain.setdefault(name, []).append(entry)
        return True

    def _take_hashed(self, names: str, entry: Entry) -> bool:
        try:
            empty, kind, salt, digest = names.split("|")
            if (empty, kind) != ("", "1"):
                return False
            parts = (
                base64.b64decode(salt, validate=True),
                base64.b64decode(digest, validate=True),
            )
        except (ValueError, binascii.Error):
            return False
        self._hashed.append((*parts, entry))
        return True


def _type_in(blob: bytes) -> str:
    """The key's type as its own bytes say: a length of four bytes, then the name."""
    length = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + length].decode("ascii", "replace")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """OpenSSH's list: any match counts, a negated match refuses. `[` is literal there."""
    if any(p.startswith("!") and _fits(name, p[1:]) for p in patterns):
        return False
    return any(_fits(name, p) for p in patterns if not p.startswith("!"))


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern.replace("[", "[[]"))


@cache
def known_hosts(files: tuple[str, ...]) -> KnownHosts:
    """Read once per process and set of files."""
    return KnownHosts(files)


@cache
def revoked_keys(file: str) -> frozenset[bytes]:
    """The keys of a RevokedHostKeys file, one per line. Raises `ValueError` for a binary list (KRL)
    and `OSError` for what can't be read: a revocation that isn't seen is worse than no connection."""
    data = Path(file).read_bytes()
    if data.startswith(b"SSHKRL\n\0"):
        raise ValueError("a key revocation list (KRL) is not supported")
    found = set()
    for line in data.decode("utf-8", "replace").splitlines():
        words = line.split()
        if words and not words[0].startswith("#"):
            found.add(base64.b64decode(words[1] if len(words) > 1 else "", validate=True))
    return frozenset(found)
