"""The ssh-agent: one connection for the whole run, not one per node."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import threading
from functools import cache
from typing import Any

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

_ANSWER_S = 10.0
"""A forwarded agent whose far end has gone accepts and stays silent."""

_CERTIFICATE = "-cert-v01@openssh.com"


class _Agent(AgentSSH):
    """paramiko's has no lock: two threads that sign at once would read each other's answer."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._signing = threading.Lock()
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        conn.settimeout(_ANSWER_S)
        try:
            conn.connect(path)
            self._connect(conn)  # type: ignore[attr-defined]  # paramiko's own way in
        except BaseException:
            conn.close()
            raise

    def hang_up(self) -> None:
        self._close()  # type: ignore[attr-defined]  # paramiko's own way out

    def _send_message(self, message: Any) -> Any:  # noqa: ANN401  # paramiko's types
        with self._signing:
            return super()._send_message(message)  # type: ignore[misc]


def agent_path(configured: str) -> str:
    """The socket of IdentityAgent or of the environment; "" for no agent."""
    if configured == "none":
        return ""
    if configured.startswith("$"):
        return os.environ.get(configured[1:].strip("{}"), "")
    if configured and configured != "SSH_AUTH_SOCK":
        return configured
    return os.environ.get("SSH_AUTH_SOCK", "")


_agents: list[_Agent] = []


def forget_agents() -> None:
    """Hang up and ask anew: for a process that outlives a run."""
    agent_keys.cache_clear()
    while _agents:
        _agents.pop().hang_up()


@cache
def agent_keys(path: str) -> tuple[paramiko.PKey, ...]:
    """Keys of the agent at `path`, in its order; none where nobody answers."""
    if not path:
        return ()
    found: list[paramiko.PKey] = []
    with contextlib.suppress(OSError, ValueError, paramiko.SSHException):
        agent = _Agent(path)
        _agents.append(agent)
        for key in agent.get_keys():
            kind = key.get_name()
            if kind.endswith(_CERTIFICATE):
                # Else the certificate's name would be sent with the plain key's bytes.
                key.public_blob = PublicBlob(kind, key.blob)  # type: ignore[assignment]  # as in its own key classes
            found.append(key)
    return tuple(found)


def plain_bytes(key: paramiko.PKey) -> bytes:
    """The public key itself, also of a key that carries a certificate."""
    kind = key.get_name()
    if not kind.endswith(_CERTIFICATE):
        return key.asbytes()
    return certified_key(PublicBlob(kind, key.blob))  # type: ignore[attr-defined]  # an agent's


def certified_key(certificate: PublicBlob) -> bytes:
    """The public key that a certificate is about. Raises `SSHException` for an unknown kind."""
    kind = certificate.key_type.removesuffix(_CERTIFICATE)
    key: paramiko.PKey = paramiko.PKey.from_type_string(kind, certificate.key_blob)
    return key.asbytes()


def twin(key: paramiko.PKey) -> paramiko.PKey:
    """The same key once more, to carry another certificate, or none."""
    if isinstance(key, AgentKey):  # can't be copied: it asks its inner key for what it lacks
        return AgentKey(key.agent, key.blob, key.comment)
    return copy.copy(key)


def agent_state(path: str) -> str:
    """For an error: why the agent gave nothing."""
    if not path:
        return "SSH_AUTH_SOCK is not set"
    return f"the agent at {path} {'holds other keys' if agent_keys(path) else 'gives no keys'}"
