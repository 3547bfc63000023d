"""Is this the machine it claims to be? The policy that follows from known_hosts, before anything is
sent that needs trust. Jump hosts are held to the same."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import shlex
from collections.abc import Sequence
from pathlib import Path

import paramiko

from gpufleet.errors import Unreachable
from gpufleet.ssh.knownhosts import (
    Entry,
    KnownHosts,
    known_host_files,
    known_hosts,
    revoked_keys,
)
from gpufleet.ssh.target import Target


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Accepts the server's key or raises `Unreachable` at stage host-key, by `access.host_keys`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._access = target.access
        self._files = known_host_files(target)
        self._store = known_hosts(self._files)
        self._name = target.known_hosts_name
        self._entries = self._store.lookup(self._name)

    def key_types(self, offered: Sequence[str]) -> tuple[str, ...]:
        """Of the algorithms `offered`, those for which a key is known; all where none is.

        A server asked for another type than the known one would show a key that looks changed.
        """
        if self._access.host_keys == "off":
            return tuple(offered)
        known = {entry.key_type for entry in self._plain(self._entries)}
        if "ssh-rsa" in known:  # the key's type; rsa-sha2-* are the algorithms that use it
            known |= {"rsa-sha2-256", "rsa-sha2-512"}
        return tuple(kind for kind in offered if kind in known) or tuple(offered)

    def no_such_type(self) -> Unreachable:
        """The server has no key of a type that is known for it: it isn't the machine that it was."""
        known = self._plain(self._entries)
        kinds = ", ".join(dict.fromkeys(entry.key_type for entry in known))
        where = known[0].where if known else self._files[0]
        return _refused(
            f"host key changed: {self._name} has no key of a known type ({kinds}, {where})",
            f"ssh-keygen -R '{self._name}' -f {known[0].file if known else self._files[0]}  "
            "# only if the node was reinstalled or its sshd has new keys",
        )

    def missing_host_key(
        self, _client: paramiko.SSHClient, _hostname: str, key: paramiko.PKey
    ) -> None:
        """Called with the server's key before anything is sent that needs trust."""
        blob = key.asbytes()
        self._refuse_revoked(blob)
        if self._access.host_keys == "off" or self._is_known(self._entries, key):
            return
        if self._access.host_keys == "accept-new":
            self._remember(key)
            return
        raise self._unknown(key)

    def _refuse_revoked(self, blob: bytes) -> None:
        for entry in self._entries:
            if entry.marker == "revoked" and entry.blob == blob:
                raise _refused(f"host key of {self._name} is revoked ({entry.where})")
        file = self._target.revoked_keys
        if not file or file == "none":
            return
        try:
            revoked = blob in revoked_keys(file)
        except (OSError, ValueError) as error:
            raise _refused(f"RevokedHostKeys {file}: {error}", f"ls -l {file}") from error
        if revoked:
            raise _refused(f"host key of {self._name} is revoked ({file})")

    def _is_known(self, entries: Sequence[Entry], key: paramiko.PKey) -> bool:
        """False where nothing is known of this host; raises where another key is."""
        known = self._plain(entries)
        if not known:
            return False
        if any(entry.blob == key.asbytes() for entry in known):
            return True
        same_type = [entry for entry in known if entry.key_type == key.get_name()]
        other = (same_type or known)[0]
        raise _refused(
            f"host key changed: {self._name} shows {key.get_name()} {key.fingerprint}, "
            f"{other.where} has another key",
            f"ssh-keygen -R {_quoted(self._name)} -f {_quoted(other.file)}  "
            "# only if the node was reinstalled",
        )

    @staticmethod
    def _plain(entries: Sequence[Entry]) -> list[Entry]:
        return [entry for entry in entries if not entry.marker]

    def _unknown(self, key: paramiko.PKey) -> Unreachable:
        access = self._access
        signed = next((e for e in self._entries if e.marker == "cert-authority"), None)
        hint = (
            f"; the @cert-authority line {signed.where} does not help: host certificates are not "
            "supported"
            if signed
            else ""
        )
        port = f"-p {access.port} " if access.port != 22 else ""
        scan = f"ssh-keyscan {port}{_quoted(access.address)}"
        if self._target.host_key_alias:  # the scan writes the address, which isn't looked up
            scan += f" | sed {_quoted(f's/^[^ ]*/{self._name}/')}"
        file = Path(self._files[0])
        make = "" if file.parent.is_dir() else f"mkdir -p {_quoted(str(file.parent))}; "
        return _refused(
            f"host key not known: {self._name} shows {key.get_name()} {key.fingerprint}, and "
            f"{self._files[0]} has no entry for it{hint}",
            f"{make}{scan} >> {_quoted(str(file))}  # then compare the fingerprint, or use "
            "host_keys: accept-new",
        )

    def _remember(self, key: paramiko.PKey) -> None:
        """One line appended under a lock, after a look at what others have added since: parallel
        runs and threads never mix or lose lines, and never take a second key for a host."""
        path = Path(self._files[0])
        line = f"{self._name} {key.get_name()} {base64.b64encode(key.asbytes()).decode()}\n"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("a+b") as file, contextlib.ExitStack() as unlocking:
                fcntl.flock(file, fcntl.LOCK_EX)
                unlocking.callback(fcntl.flock, file, fcntl.LOCK_UN)
                if self._is_known(KnownHosts([str(path)]).lookup(self._name), key):
                    return
                file.seek(0)
                text = file.read()
                file.write((b"\n" if text and not text.endswith(b"\n") else b"") + line.encode())
                file.flush()
                number = text.count(b"\n") + (1 if text.endswith(b"\n") or not text else 2)
        except OSError as error:
            raise _refused(
                f"cannot add the new host key to {path}: {error.strerror}", f"ls -l {path}"
            ) from error
        self._store.add(self._name, Entry(str(path), number, key.get_name(), key.asbytes()))


def _quoted(word: str) -> str:
    """For a command that will be pasted: `[h]:p` is a pattern to some shells."""
    return shlex.quote(word)


def _refused(reason: str, next_step: str = "") -> Unreachable:
    return Unreachable("host-key", reason, next_step=next_step)
