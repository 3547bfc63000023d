"""A fabric Connection with our own rules: host keys, keys, deadlines; no agent forwarding ever.

fabric's defaults accept any host key and read the user's configuration files; neither happens here.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import fabric
import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from gpufleet.errors import Unreachable
from gpufleet.ssh.hostkeys import HostKeyPolicy
from gpufleet.ssh.jumpchannel import HANDLERS
from gpufleet.ssh.keys import Identity, Offer, identities
from gpufleet.ssh.proxycommand import CommandSocket
from gpufleet.ssh.target import Target
from gpufleet.ssh.watchdog import WATCHDOG

KEEPALIVE_S = 15

AUTH_S = 30.0
"""At least so long for a login: an account whose home is on a slow network file system."""

_LOST = ("transport shut down or saw EOF", "No existing session", "EOFError")


class _Transport(paramiko.Transport):
    """Keeps the server's parting words, which paramiko only logs, and its channels in order."""

    parting = ""
    _channel_handler_table = HANDLERS

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.parting = message.get_text()
        message.rewind()
        super()._parse_disconnect(message)  # type: ignore[misc]


def _config() -> fabric.Config:
    """Empty: no fabric or OpenSSH file of the user's changes how gpufleet connects. One for each
    connection (0.2 ms): while a thread changes one (its `connect_kwargs`), others find it empty."""
    return fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)


def open_connection(
    target: Target,
    sock: socket.socket | paramiko.Channel,
    slot: contextlib.AbstractContextManager[object],
) -> fabric.Connection:
    """An authenticated connection over `sock`, which is closed on failure. Raises `Unreachable`.

    `slot` is held from the server's first word to the end of the login.
    """
    with _closing_on_failure(sock):
        keys = identities(target)
        policy = HostKeyPolicy(target)
        access = target.access
        connection = fabric.Connection(
            access.address,
            user=access.user,
            port=access.port,
            config=_config(),
            gateway=None,
            forward_agent=False,
            connect_kwargs=_connect_kwargs(target, policy, keys, sock),
        )
        connection.client.set_missing_host_key_policy(policy)
        with slot:
            _log_in(target, connection, keys, sock)
    return connection


@contextlib.contextmanager
def _closing_on_failure(sock: socket.socket | paramiko.Channel) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, EOFError):
            sock.close()
        raise


def _log_in(
    target: Target,
    connection: fabric.Connection,
    keys: tuple[Identity, ...],
    sock: socket.socket | paramiko.Channel,
) -> None:
    started = time.monotonic()
    limit = target.access.connect_timeout_s
    client = connection.client
    offer: Offer = connection.connect_kwargs["auth_strategy"]

    def give_up() -> None:
        with contextlib.suppress(OSError, EOFError):
            sock.close()
        client.close()

    # paramiko limits each step; a server that feeds it crumbs stays below each of those limits.
    with (
        WATCHDOG.watch(2 * limit + max(limit, AUTH_S), give_up),
        WATCHDOG.watch(2 * limit, give_up) as handshake,
    ):
        offer.on_start = handshake.end
        try:
            connection.open()
        except BaseException as error:
            transport = client.get_transport()
            # fabric leaves the transport's thread and the socket behind after a failed open.
            client.close()
            if isinstance(sock, CommandSocket):
                sock.close()  # now, so that its last words are out
            if isinstance(error, Unreachable) or not isinstance(error, Exception):
                raise
            # A server's garbage makes paramiko raise about anything: ValueError, IndexError …
            took_s = time.monotonic() - started
            raise _failure(target, keys, error, took_s, transport, sock) from error
    transport = client.get_transport()
    if transport is None or not transport.is_authenticated():
        client.close()
        raise Unreachable(
            "authentication",
            f"{target.access.user}@{target.access.address} took the key and wants a second proof "
            "(a password or a code), which gpufleet never gives",
            next_step=f"{target.access.ssh_command} true",
        )


def _connect_kwargs(
    target: Target,
    policy: HostKeyPolicy,
    keys: tuple[Identity, ...],
    sock: socket.socket | paramiko.Channel,
) -> dict[str, Any]:
    """Made anew for each connection: fabric and paramiko write into it."""
    limit = target.access.connect_timeout_s

    def transport(sock: socket.socket, **options: Any) -> paramiko.Transport:  # noqa: ANN401  # paramiko passes what it likes
        made = _Transport(sock, **options)
        made.handshake_timeout = limit
        made.set_keepalive(KEEPALIVE_S)
        security = made.get_security_options()
        security.ciphers = _cheapest_first(tuple(security.ciphers))
        security.key_types = policy.key_types(tuple(security.key_types))
        return made

    return {
        "sock": sock,
        "timeout": limit,
        "banner_timeout": limit,
        "auth_timeout": max(limit, AUTH_S),
        "channel_timeout": limit,
        "auth_strategy": Offer(target.access.user, keys),
        "transport_factory": transport,
    }


def _cheapest_first(ciphers: tuple[str, ...]) -> tuple[str, ...]:
    """AES-GCM seals and checks a packet in one call of the library; with the others paramiko makes
    and compares the checksum of each in Python."""
    return tuple(sorted(ciphers, key=lambda name: "gcm" not in name))


def _failure(
    target: Target,
    keys: tuple[Identity, ...],
    error: Exception,
    took_s: float,
    transport: paramiko.Transport | None,
    sock: socket.socket | paramiko.Channel,
) -> Unreachable:
    """What a failed handshake or login means, and whether a further try may end otherwise.

    paramiko has one text for a server that drops us and one that stays silent; the time tells.
    """
    access = target.access
    check = f"{access.ssh_command} true"
    if isinstance(error, paramiko.AuthenticationException):
        return _login_failure(target, keys, error, transport)
    if isinstance(error, IncompatiblePeer):
        if "host key" in str(error) and access.host_keys != "off":
            return HostKeyPolicy(target).no_such_type()
        return Unreachable(
            "handshake",
            f"no algorithm in common: {error}",
            next_step=f"{check} -vv  # then allow curve25519, aes-ctr or aes-gcm in its sshd_config",
        )
    text = str(error) or type(error).__name__
    said = _parting(transport)
    if said:
        text = f"the server ended the handshake: {said}"
    elif isinstance(error, TimeoutError) or took_s >= access.connect_timeout_s:
        text = f"no answer during the SSH handshake in {took_s:.0f} s"
    elif "protocol banner" in text or isinstance(error, (EOFError, ConnectionResetError)):
        text = f"the server dropped the connection during the handshake ({text})"
    if isinstance(sock, CommandSocket) and (words := sock.said()):
        text = f"{text}; ProxyCommand said: {words}"
    return Unreachable("handshake", text, next_step=check, transient=True)


def _login_failure(
    target: Target,
    keys: tuple[Identity, ...],
    error: paramiko.AuthenticationException,
    transport: paramiko.Transport | None,
) -> Unreachable:
    """A refusal is final: another try could lock the account. A connection that went isn't one."""
    access = target.access
    who = f"{access.user}@{access.address}"
    attempts = [attempt.result for attempt in getattr(error, "result", ())] or [error]
    results = [str(result) or type(result).__name__ for result in attempts]
    parting = _parting(transport)
    timed_out = "Authentication timeout." in results
    if not parting and not timed_out and not any(_is_refusal(result) for result in attempts):
        return Unreachable(
            "authentication",
            f"{who}: the connection was lost during the login",
            next_step=f"{access.ssh_command} true",
            transient=True,
        )
    if not parting and timed_out:
        return Unreachable(
            "authentication",
            f"{who}: no answer to the login in {max(access.connect_timeout_s, AUTH_S):g} s",
            next_step=f"{access.ssh_command} true",
            transient=True,
        )
    words = sorted(set(results) - {"Authentication failed."})
    words = [text for text in words if not any(lost in text for lost in _LOST)]
    words += [text for text in (parting, _banner(transport)) if text]
    said = f": {'; '.join(words)}" if words else ""
    offered = ", ".join(identity.origin for identity in keys)
    return Unreachable(
        "authentication",
        f"{who} refused every key offered ({len(keys)}: {offered}){said}",
        next_step=f"ssh-copy-id -i KEY.pub {who}, or check: {access.ssh_command} true",
    )


def _is_refusal(result: object) -> bool:
    """The server's own no. What else ends a try (a reset, a broken pipe) is the connection's end."""
    lost = any(text in str(result) for text in _LOST)
    return isinstance(result, paramiko.AuthenticationException) and not lost


def _parting(transport: paramiko.Transport | None) -> str:
    return " ".join(getattr(transport, "parting", "").split())[:200]


def _banner(transport: paramiko.Transport | None) -> str:
    """What the server shows before a login: often the reason, as with pam_slurm_adopt."""
    handler = getattr(transport, "auth_handler", None)
    banner = getattr(handler, "banner", None) or b""
    text = banner.decode("utf-8", "replace") if isinstance(banner, bytes) else str(banner)
    return " ".join(text.split())[:300]
