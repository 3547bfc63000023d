"""Private keys: loaded once per run, few of them offered, the configured ones alone.

No prompt here and no password anywhere: a key that needs a passphrase comes from the agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import paramiko
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey

from gpufleet.errors import Unreachable

MAX_OFFERED = 5
"""sshd cuts a client off at MaxAuthTries, 6 by default, before the right key may have come."""

USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")

_lock = threading.Lock()


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

    def get_sources(self) -> Iterator[AuthSource]:
        for identity in self._identities:
            yield InMemoryPrivateKey(self._user, identity.key)


def identities(files: tuple[str, ...]) -> tuple[Identity, ...]:
    """The keys to offer: those of `files`, or the agent's and the usual ones where none is given.

    Raises `Unreachable` at stage authentication when a configured file can't be used, or when there
    is nothing to offer. Read once; safe to call from many threads.
    """
    with _lock:
        found = _configured(files) if files else _usual()
    if not found:
        raise Unreachable(
            "authentication",
            f"no key to offer: no agent reachable ({_agent_state()}) and none of "
            f"{', '.join(USUAL_KEYS)} in ~/.ssh",
            next_step="set identity_file in fleet.yaml",
        )
    return found


@cache
def _configured(files: tuple[str, ...]) -> tuple[Identity, ...]:
    return tuple(_load(file) for file in files)[:MAX_OFFERED]


@cache
def _usual() -> tuple[Identity, ...]:
    home = Path(os.path.expanduser("~"), ".ssh")
    found = [Identity("agent", key) for key in _agent_keys()]
    for name in USUAL_KEYS:
        path = home / name
        if path.is_file():
            try:
                found.append(Identity(str(path), paramiko.PKey.from_path(path)))
            except (OSError, ValueError, TypeError, paramiko.SSHException):
                continue  # encrypted or odd: it is one of several guesses, not what was asked for
    return tuple(found[:MAX_OFFERED])


def _load(file: str) -> Identity:
    try:
        return Identity(file, paramiko.PKey.from_path(Path(file)))
    except OSError as error:
        raise _unusable(f"cannot read key {file}: {error.strerror}", f"ls -l {file}") from error
    except (paramiko.PasswordRequiredException, TypeError) as error:
        if held := _from_agent(file):
            return held
        raise _unusable(
            f"key {file} needs a passphrase and the agent does not hold it ({_agent_state()})",
            f"ssh-add {file}",
        ) from error
    except (ValueError, paramiko.SSHException) as error:
        raise _unusable(
            f"key {file} cannot be read: {error}", f"ssh-keygen -y -f {file}"
        ) from error


def _from_agent(file: str) -> Identity | None:
    """The agent's key for an encrypted file, known by the public key beside it."""
    try:
        public = Path(f"{file}.pub").read_text().split()[1]
    except (OSError, IndexError):
        return None
    for key in _agent_keys():
        if key.get_base64() == public:
            return Identity(f"{file} (agent)", key)
    return None


@cache
def _agent_keys() -> tuple[paramiko.PKey, ...]:
    """One connection to the agent for the whole run, not one per node."""
    if not os.environ.get("SSH_AUTH_SOCK"):
        return ()
    try:
        return tuple(paramiko.Agent().get_keys())
    except (OSError, paramiko.SSHException):
        return ()


def _agent_state() -> str:
    socket = os.environ.get("SSH_AUTH_SOCK")
    return f"SSH_AUTH_SOCK={socket}" if socket else "SSH_AUTH_SOCK is not set"


def _unusable(reason: str, next_step: str) -> Unreachable:
    return Unreachable("authentication", reason, next_step=next_step)
