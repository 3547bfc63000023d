"""From a node's settings to the machines on the way to it: fleet.yaml first, OpenSSH's files where it
is silent, our defaults last."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from gpufleet.errors import Unreachable, UsageError
from gpufleet.policy import Access, HostKeys, NodeSpec
from gpufleet.ssh.openssh import OpenSSH
from gpufleet.ssh.target import Target

Said = Mapping[str, Sequence[str]]

MAX_HOPS = 8

_CHECKING: dict[str, HostKeys] = {
    "true": "strict",
    "yes": "strict",
    "ask": "strict",
    "accept-new": "accept-new",
    "false": "off",
    "no": "off",
    "off": "off",
}
"""`ask` would ask; nobody may be there, so it is strict."""


@cache
def openssh(files: tuple[str, ...], home: str) -> OpenSSH:
    """Read once per process. `home` is there to tell processes with a changed $HOME apart."""
    del home
    return OpenSSH(files)


def route(spec: NodeSpec) -> tuple[Target, ...]:
    """First hop first, the node last. Raises `UsageError` when an ssh_config can't be used, and
    `Unreachable` for a circle of jump hosts."""
    files = spec.access.ssh_config
    if files is False or not (config := openssh(files, os.path.expanduser("~"))).says_anything:
        hops = [Target(name, access) for name, access in spec.jump_hosts]
        return (*hops, Target(spec.name, spec.access))
    node, said = _settled(config, spec.name, spec.access)
    if "jump" in spec.access.said or spec.jump_hosts:
        found = [_settled(config, name, access) for name, access in spec.jump_hosts]
        hops = [target for target, _ in found]
        if found:
            first, its = found[0]
            before, first = _before(config, first, its, [first.name])
            hops = [*before, first, *hops[1:]]
        return (*hops, node)
    before, node = _before(config, node, said, [spec.name])
    return (*before, node)


def _before(
    config: OpenSSH, target: Target, said: Said, under_way: list[str]
) -> tuple[list[Target], Target]:
    """The hops that OpenSSH's files put before `target`, and `target` with its ProxyCommand."""
    jump = said.get("proxyjump", ("none",))[0]
    command = said.get("proxycommand", ("none",))[0]
    if jump.lower() == "none":
        if command.lower() == "none":
            return [], target
        if said.get("proxyusefdpass", ("no",))[0] == "yes":
            raise Unreachable(
                "connect",
                f"{target.name}: ProxyUseFdpass is not supported",
                next_step="use ProxyJump in ssh_config, or jump in fleet.yaml",
            )
        return [], replace(target, proxy_command=_filled(command, target))
    hops: list[Target] = []
    for number, text in enumerate(jump.split(",")):
        access = _hop(text.strip())
        name = access.address
        if name in under_way or len(under_way) > MAX_HOPS:
            circle = " > ".join([*under_way, name])
            raise Unreachable(
                "connect",
                f"ssh_config: a circle of jump hosts: {circle}",
                next_step=f"ssh -G {name} | grep proxyjump",
            )
        hop, its = _settled(config, name, access, getpass.getuser())
        if number == 0:  # as with `ssh -J a,b`: only the first may have hops of its own
            before, hop = _before(config, hop, its, [*under_way, name])
            hops += before
        hops.append(hop)
    return hops, target


def _hop(text: str) -> Access:
    """`user@host:port`, `ssh://user@host:port`, `[v6]:port`."""
    found = re.fullmatch(
        r"(?:ssh://)?(?:(?P<user>.*)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+|[0-9A-Fa-f:]+))"
        r"(?::(?P<port>[0-9]+))?/?",
        text,
    )
    if not found:
        raise Unreachable("connect", f"ssh_config: ProxyJump {text} cannot be read")
    said = {name for name in ("user", "port") if found[name]}
    return Access(
        found["v6"] or found["host"],
        user=found["user"] or "root",
        port=int(found["port"] or 22),
        said=frozenset(said),
    )


def _settled(config: OpenSSH, name: str, access: Access, login: str = "") -> tuple[Target, Said]:
    """The target with what OpenSSH's files add where `access` says nothing, and their whole answer.

    Asked by the inventory's name, as people type it; where that says nothing, by the address.
    `login`: the user where nobody names one (for a hop of OpenSSH's own, its rule: the caller).
    """
    own = access.given
    given = {}
    if "user" in own:
        given["user"] = access.user
    if "port" in own:
        given["port"] = str(access.port)
    if access.address != name:
        given["hostname"] = access.address
    said: Said = config.ask(name, given)
    if not said and access.address != name:
        del given["hostname"]
        said = config.ask(access.address, given)
    user = access.user if "user" in own else _one(said, "user", login or access.user)
    settled = replace(
        access,
        address=_one(said, "hostname", access.address),
        user=user,
        port=access.port if "port" in own else int(_one(said, "port", str(access.port))),
        connect_timeout_s=_timeout(access, said),
        host_keys=access.host_keys
        if "host_keys" in own
        else _CHECKING.get(_one(said, "stricthostkeychecking", "ask"), "strict"),
    )

    def files(key: str) -> list[str]:
        return [word for value in said.get(key, ()) for word in _words(value)]

    target = Target(
        name,
        settled,
        host_key_alias=_one(said, "hostkeyalias", ""),
        revoked_keys=os.path.expanduser(_one(said, "revokedhostkeys", "")),
        identities_only=bool(access.identity_file) or _one(said, "identitiesonly", "no") == "yes",
        agent=_one(said, "identityagent", ""),
        family=_one(said, "addressfamily", "any"),
        bind_address=_one(said, "bindaddress", ""),
    )
    system = files("globalknownhostsfile")
    return replace(
        target,
        user_known_hosts=tuple(_path(file, target) for file in files("userknownhostsfile")),
        system_known_hosts=tuple(_path(file, target) for file in system) if system else None,
        identities=()
        if access.identity_file
        else tuple(_path(file, target) for file in said.get("identityfile", ()) if file != "none"),
        certificates=tuple(_path(file, target) for file in said.get("certificatefile", ())),
        agent=target.agent if target.agent in {"", "none"} else _path(target.agent, target),
    ), said


def _one(said: Said, key: str, default: str) -> str:
    return said[key][0] if said.get(key) else default


def _words(value: str) -> list[str]:
    """Files side by side; those with blanks in quotes."""
    return [quoted or bare for quoted, bare in re.findall(r'"([^"]+)"|(\S+)', value)]


def _timeout(access: Access, said: Said) -> float:
    if "connect_timeout_s" in access.given:
        return access.connect_timeout_s
    try:
        return float(_one(said, "connecttimeout", "")) or access.connect_timeout_s
    except ValueError:  # none
        return access.connect_timeout_s


def _path(text: str, target: Target) -> str:
    return os.path.expanduser(_filled(text.strip('"'), target))


def _filled(text: str, target: Target) -> str:
    """OpenSSH's tokens (ssh_config(5), TOKENS) and ${VARIABLES}."""
    access = target.access
    here, local = socket.gethostname(), getpass.getuser()
    port = str(access.port)
    together = f"{here}{access.address}{port}{access.user}"
    tokens = {
        "%": "%",
        "C": hashlib.sha1(together.encode()).hexdigest(),  # noqa: S324  # OpenSSH's choice
        "d": os.path.expanduser("~"),
        "h": access.address,
        "i": str(os.getuid()),
        "j": "",
        "k": target.host_key_alias or access.address,
        "L": here.partition(".")[0],
        "l": here,
        "n": target.name,
        "p": port,
        "r": access.user,
        "u": local,
    }

    def token(match: re.Match[str]) -> str:
        if match[1] not in tokens:
            raise UsageError(f"ssh_config: {text}: %{match[1]} is not a token")
        return tokens[match[1]]

    filled = re.sub(r"%(.)", token, text)
    return re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), filled)
