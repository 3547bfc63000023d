"""Private keys: loaded once per run, few of them offered, configured ones first.

No password anywhere. A key that needs a passphrase comes from the agent, or is asked for once before
the run (`unlock`), and else is told.
"""

from __future__ import annotations

import base64
import binascii
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import paramiko
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.pkey import PublicBlob

from gpufleet.errors import Unreachable
from gpufleet.records import dataclass
from gpufleet.ssh.agent import (
    agent_keys,
    agent_path,
    agent_state,
    certified_key,
    forget_agents,
    plain_bytes,
    twin,
)
from gpufleet.ssh.target import Target

MAX_OFFERED = 5
"""sshd cuts a client off at MaxAuthTries, 6 by default, before the right key may have come."""

USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")

Ask = Callable[[str], str]
"""Asks a person for a passphrase with this prompt; "" for none."""


@dataclass(frozen=True)
class Identity:
    """A key that can be offered, and where it is from, for messages."""

    origin: str
    key: paramiko.PKey


class Offer(AuthStrategy):
    """Offers `identities` in order to one server."""

    def __init__(self, user: str, identities: tuple[Identity, ...]) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._user = user
        self._identities = identities
        self.on_start: Callable[[], None] = lambda: None
        """Called when the handshake is over and the login begins."""

    def get_sources(self) -> Iterator[AuthSource]:
        self.on_start()
        for identity in self._identities:
            yield InMemoryPrivateKey(self._user, identity.key)


def identities(target: Target) -> tuple[Identity, ...]:
    """The keys to offer to `target`, at most `MAX_OFFERED`; safe to call from many threads.

    Raises `Unreachable` at stage authentication when a key of fleet.yaml can't be used, or when there
    is nothing to offer. A key that only OpenSSH's files name may be missing, as for OpenSSH.
    """
    agent = agent_path(target.agent)
    found: list[Identity] = []
    problems: list[str] = []
    for file in target.access.identity_file:
        found += _load(file, target.certificates, agent)
    if not target.access.identity_file:
        named = target.identities
        for file in named or _usual_files():
            try:
                found += _load(file, target.certificates, agent)
            except Unreachable as error:  # noqa: PERF203  # one bad key must not cost the others
                problems.append(error.reason)
        if not target.identities_only:
            others = [Identity("agent", key) for key in agent_keys(agent) if not _touch(key)]
            known = {identity.key.asbytes() for identity in found}
            fresh = [identity for identity in others if identity.key.asbytes() not in known]
            found = [*found, *fresh] if named else [*fresh, *found]
    if not found:
        where = f"none of {', '.join(USUAL_KEYS)} in ~/.ssh can be used"
        what = "; ".join([*problems] or [where])
        raise _unusable(
            f"no key to offer: {what} ({agent_state(agent)})", "set identity_file in fleet.yaml"
        )
    return tuple(found[:MAX_OFFERED])


def unlock(target: Target, ask: Ask) -> None:
    """Ask for the passphrase of each encrypted key that would be needed and that no agent holds.

    Raises `Unreachable` after a wrong one. Once per key and process.
    """
    agent = agent_path(target.agent)
    given = target.access.identity_file or target.identities
    for file in given or _usual_files():
        if not given and agent_keys(agent):
            return
        if _needs_passphrase(file, agent):
            _passphrases[file] = ask(f"Passphrase for {file}: ").encode()
            _loaded.clear()
            _load(file, target.certificates, agent)


_lock = threading.Lock()
_loaded: dict[tuple[str, tuple[str, ...], str], tuple[Identity, ...] | Unreachable] = {}
_passphrases: dict[str, bytes] = {}


def passphrases() -> dict[str, bytes]:
    """What `unlock` was told, by key: for this run's own processes on this machine, and nobody else."""
    return dict(_passphrases)


def unlock_with(given: Mapping[str, bytes]) -> None:
    _passphrases.update(given)


def forget() -> None:
    """Load anew: for a process that outlives a run."""
    with _lock:
        _loaded.clear()
        _passphrases.clear()
    forget_agents()


def _load(file: str, certificates: Sequence[str], agent: str) -> tuple[Identity, ...]:
    """The identities of one key file; read (and decrypted) once, failures too."""
    place = (file, tuple(certificates), agent)
    with _lock:
        if place not in _loaded:
            try:
                _loaded[place] = tuple(_read(file, certificates, agent))
            except Unreachable as error:
                _loaded[place] = error
        outcome = _loaded[place]
    if isinstance(outcome, Unreachable):
        raise Unreachable(outcome.stage, outcome.reason, next_step=outcome.next_step)
    return outcome


def _read(file: str, certificates: Sequence[str], agent: str) -> Iterator[Identity]:
    try:
        public = _public_part(file)
        held = [key for key in agent_keys(agent) if public and plain_bytes(key) == public]
        if held:  # no passphrase needed, and the private part stays where it is
            for key in held:
                yield from _with_certificates(file, key, f"{file} (agent)", certificates)
            return
        if Path(file).read_bytes().startswith((b"ssh-", b"ecdsa-", b"sk-")):
            raise _unusable(
                f"key {file} is a public key that no agent holds ({agent_state(agent)})",
                f"ssh-add {file.removesuffix('.pub')}",
            )
        passphrase: Any = _passphrases.get(file)  # bytes, whatever from_path says of itself
        key = paramiko.PKey.from_path(Path(file), password=passphrase)
    except OSError as error:
        raise _unusable(f"cannot read key {file}: {error.strerror}", f"ls -l {file}") from error
    except (paramiko.PasswordRequiredException, TypeError) as error:
        raise _unusable(
            f"key {file} needs a passphrase and no agent holds it ({agent_state(agent)})",
            f"ssh-add {file}",
        ) from error
    except (ValueError, paramiko.SSHException) as error:
        said = "wrong passphrase?" if file in _passphrases else f"{error}"
        raise _unusable(f"key {file} cannot be read: {said}", f"ssh-keygen -y -f {file}") from error
    yield from _with_certificates(file, key, file, certificates)


def _with_certificates(
    file: str, key: paramiko.PKey, origin: str, certificates: Sequence[str]
) -> Iterator[Identity]:
    """The key with each certificate that is made for it, then the bare key, as OpenSSH offers them."""
    for path in (f"{file.removesuffix('.pub')}-cert.pub", *certificates):
        try:
            blob = PublicBlob.from_file(path)
            inner = certified_key(blob)
        except (OSError, ValueError, paramiko.SSHException):
            continue  # not there, or odd: OpenSSH goes on as well
        if inner == plain_bytes(key):
            certified = twin(key)
            certified.public_blob = blob  # every key class has it
            yield Identity(path, certified)
    bare = twin(key)
    bare.public_blob = getattr(key, "public_blob", None) if origin != file else None
    yield Identity(origin, bare)


def _needs_passphrase(file: str, agent: str) -> bool:
    try:
        public = _public_part(file)
        if any(public == plain_bytes(key) for key in agent_keys(agent)):
            return False
        paramiko.PKey.from_path(Path(file))
    except (paramiko.PasswordRequiredException, TypeError):
        return file not in _passphrases
    except (OSError, ValueError, paramiko.SSHException):
        return False
    return False


def _public_part(file: str) -> bytes:
    """The public key of a key file, from KEY.pub, from the file itself if it is one, or from the
    clear part of OpenSSH's private format (PROTOCOL.key); b"" where none is to be had."""
    for path in (file, f"{file}.pub"):
        try:
            text = Path(path).read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            continue
        words = text.split()
        try:
            if text.startswith("-----BEGIN OPENSSH PRIVATE KEY-----"):
                return _clear_part(base64.b64decode("".join(text.splitlines()[1:-1])))
            if len(words) > 1 and words[0].startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(words[1], validate=True)
        except (ValueError, binascii.Error):
            continue
    return b""


def _clear_part(data: bytes) -> bytes:
    message = paramiko.Message(data.removeprefix(b"openssh-key-v1\0"))
    for _ in ("cipher", "key derivation", "its options"):
        message.get_binary()
    message.get_int()
    return message.get_binary()


def _usual_files() -> tuple[str, ...]:
    home = Path(os.path.expanduser("~"), ".ssh")
    return tuple(str(home / name) for name in USUAL_KEYS if (home / name).is_file())


def _touch(key: paramiko.PKey) -> bool:
    """A key that a person must touch: nobody may be there, and the login would wait."""
    return key.get_name().startswith("sk-")


def _unusable(reason: str, next_step: str) -> Unreachable:
    return Unreachable("authentication", reason, next_step=next_step)
