"""Names and addresses: what may stand in a selection, in ssh's arguments and in file names.

Text only: nothing is resolved. Each function raises ValueError saying what would be right.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from gpufleet.inventory.values import text

RESERVED = frozenset({"all", "failed"})
"""Words of a selection: no host or group is called so."""

MAX_LABEL = 63

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")


def unseen(value: str) -> str:
    """`U+00A0` for the first character that can't be seen or isn't ASCII, or nothing."""
    return next((f"U+{ord(c):04X}" for c in value if not (c.isascii() and c.isprintable())), "")


def check_name(value: object) -> str:
    """A host's or group's name: it stands in selections, in ssh's arguments and in file names."""
    read = text(value)
    if read in RESERVED:
        raise ValueError("this word is reserved for selections: choose another name")
    if _NAME.fullmatch(read) and not read.isdigit():
        return read
    if odd := unseen(read):
        raise ValueError(f"{odd} can't stand in a name: retype it")
    if read.startswith("@"):
        raise ValueError(f'"@" belongs to selections: call it {read[1:]}')
    if read.isdigit():
        raise ValueError("a name of digits only is a number to other tools: put a letter into it")
    raise ValueError("a name has letters, digits, . _ - and starts with a letter, a digit or _")


def check_address(value: object) -> str:
    """A host name or IP address, as getaddrinfo will take it, but never in its short forms."""
    read = text(value)
    # A name that starts with no digit is no short form of an IPv4 address: most of a large file.
    if not read[0].isdigit() and _NAME.fullmatch(read):
        return _resolvable(read)
    if _is_ip(socket.AF_INET, read):
        return read
    if ":" in read:
        return _address_with_colon(read)
    if odd := unseen(read):
        raise ValueError(f"{odd} can't stand in an address: retype it")
    if "@" in read:
        user, _, host = read.rpartition("@")
        raise ValueError(f"the login has a key of its own: address: {host}, user: {user}")
    if re.fullmatch(r"[0-9.]+", read) or _is_short_ip(read):
        raise ValueError("no full IPv4 address: four numbers of 0 to 255, without leading zeros")
    if not _NAME.fullmatch(read):
        raise ValueError("an address is a host name or an IP address")
    return _resolvable(read)


def _resolvable(read: str) -> str:
    """What no resolver takes is no host's fault: it is told here, not as UNREACHABLE."""
    parts = read.removesuffix(".").split(".")
    if not all(0 < len(part) <= MAX_LABEL for part in parts):
        raise ValueError(f"between the dots of a host name stand 1 to {MAX_LABEL} letters")
    return read


def _address_with_colon(read: str) -> str:
    bare, _, zone = read.partition("%")
    if _is_ip(socket.AF_INET6, bare) and (zone == "" or _NAME.fullmatch(zone)):
        return read
    if bracketed := re.fullmatch(r"\[([^\[\]]+)\](?::([0-9]+))?", read):
        port = f", port: {bracketed[2]}" if bracketed[2] else ""
        raise ValueError(f'IPv6 goes without brackets: address: "{bracketed[1]}"{port}')
    if with_port := re.fullmatch(r"(?:[^@\s]+@)?([^:@\s]+):([0-9]+)", read):
        raise ValueError(
            f"the port has a key of its own: address: {with_port[1]}, port: {with_port[2]}"
        )
    raise ValueError("an address is a host name or an IP address")


def _is_ip(family: int, read: str) -> bool:
    try:
        socket.inet_pton(family, read)
    except (OSError, ValueError):
        return False
    return True


def _is_short_ip(read: str) -> bool:
    """`0x7f.1`, `010`: forms that getaddrinfo takes for IPv4, and nobody means."""
    try:
        socket.inet_aton(read)
    except OSError:
        return False
    return True


def same_address(read: str) -> str:
    """One spelling per machine, for finding two names for it."""
    if ":" in read:
        found = ipaddress.IPv6Address(read)
        return str(found.ipv4_mapped or found)  # ::ffff:192.0.2.1 is dialled as 192.0.2.1
    return read.lower().removesuffix(".")


def check_user(value: object) -> str:
    read = text(value)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]*\$?", read):
        raise ValueError("a login name has letters, digits, . _ - and starts with no -")
    return read
