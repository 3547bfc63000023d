"""A fabric Connection with our own rules: host keys, keys, deadlines; no agent forwarding ever.

fabric's defaults accept any host key and read the user's configuration files; neither happens here.
"""

from __future__ import annotations

import contextlib
import socket
import time
from functools import cache
from typing import Any

import fabric
import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from gpufleet.errors import Unreachable
from gpufleet.policy import Access
from gpufleet.ssh.hostkeys import HostKeyPolicy
from gpufleet.ssh.keys import Identity, Offer, identities
from gpufleet.ssh.sockets import open_socket

KEEPALIVE_S = 15


@cache
def _config() -> fabric.Config:
    """Empty: no fabric or OpenSSH file of the user's changes how gpufleet connects."""
    return fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)


def open_connection(access: Access, *, via: fabric.Connection | None = None) -> fabric.Connection:
    """An authenticated connection, direct or through a channel of `via`. Raises `Unreachable`."""
    keys = identities(access.identity_file)
    policy = HostKeyPolicy(access)
    sock = open_socket(access) if via is None else _channel_through(via, access)
    connection = fabric.Connection(
        access.address,
        user=access.user,
        port=access.port,
        config=_config(),
        gateway=None,
        forward_agent=False,
        connect_kwargs=_connect_kwargs(access, policy, keys, sock),
    )
    connection.client.set_missing_host_key_policy(policy)
    started = time.monotonic()
    try:
        connection.open()
    except BaseException as error:
        # fabric leaves the transport's thread and the socket behind after a failed open.
        connection.client.close()
        sock.close()
        if isinstance(error, (OSError, EOFError, paramiko.SSHException)):
            raise _failure(access, keys, error, time.monotonic() - started) from error
        raise
    return connection


def _connect_kwargs(
    access: Access, policy: HostKeyPolicy, keys: tuple[Identity, ...], sock: object
) -> dict[str, Any]:
    """Made anew for each connection: fabric and paramiko write into it."""
    limit = access.connect_timeout_s

    def transport(sock: socket.socket, **options: Any) -> paramiko.Transport:  # noqa: ANN401  # paramiko passes what it likes
        made = paramiko.Transport(sock, **options)
        made.handshake_timeout = limit
        made.set_keepalive(KEEPALIVE_S)
        security = made.get_security_options()
        security.key_types = policy.key_types(tuple(security.key_types))
        return made

    return {
        "sock": sock,
        "timeout": limit,
        "banner_timeout": limit,
        "auth_timeout": max(limit, 30.0),  # an account whose home is on a slow network file system
        "channel_timeout": limit,
        "auth_strategy": Offer(access.user, keys),
        "transport_factory": transport,
    }


def _channel_through(via: fabric.Connection, access: Access) -> paramiko.Channel:
    assert via.transport is not None
    try:
        channel: paramiko.Channel = via.transport.open_channel(
            "direct-tcpip",
            (access.address, access.port),
            ("", 0),
            timeout=access.connect_timeout_s,
        )
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise Unreachable(
            "connect",
            f"jump host {via.host} cannot reach {access.address} port {access.port}: {error}",
            next_step=f"ssh -J {via.user}@{via.host}:{via.port} {access.user}@{access.address}",
            transient=True,
        ) from error
    return channel


def _failure(
    access: Access, keys: tuple[Identity, ...], error: Exception, took_s: float
) -> Unreachable:
    """What a failed handshake or login means, and whether a further try may end otherwise.

    paramiko has one text for a server that drops us and one that stays silent; the time tells.
    """
    check = f"{access.ssh_command} true"
    if isinstance(error, paramiko.AuthenticationException):
        offered = ", ".join(identity.origin for identity in keys)
        banner = _server_said(error)
        return Unreachable(
            "authentication",
            f"{access.user}@{access.address} refused every key offered ({offered}){banner}",
            next_step=f"ssh-copy-id -i KEY.pub {access.user}@{access.address}, or check: {check}",
        )
    if isinstance(error, IncompatiblePeer):
        return Unreachable("handshake", f"no common algorithm: {error}", next_step=f"{check} -vv")
    text = str(error) or type(error).__name__
    if isinstance(error, TimeoutError) or took_s >= access.connect_timeout_s:
        text = f"no answer during the SSH handshake in {access.connect_timeout_s:g} s"
    elif "protocol banner" in text or isinstance(error, (EOFError, ConnectionResetError)):
        text = f"the server dropped the connection during the handshake ({text})"
    return Unreachable("handshake", text, next_step=check, transient=True)


def _server_said(error: paramiko.AuthenticationException) -> str:
    """The server's own words, where it gave any beside a plain refusal."""
    with contextlib.suppress(AttributeError, IndexError):
        said = {str(attempt.result) for attempt in error.result}  # type: ignore[attr-defined]  # AuthFailure
        words = sorted(said - {"Authentication failed."})
        return f": {'; '.join(words)}" if words else ""
    return ""
