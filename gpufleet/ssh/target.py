"""One machine on the way to a node, with everything that decides how it is connected to."""

from __future__ import annotations

from dataclasses import field

from gpufleet.policy import Access
from gpufleet.records import dataclass


@dataclass(frozen=True)
class Target:
    """A node or a jump host. `access` is what holds in the end: fleet.yaml over OpenSSH's files."""

    name: str
    """What the inventory (or a ProxyJump) calls it."""

    access: Access

    host_key_alias: str = ""
    """Looked up in known_hosts in place of the address (HostKeyAlias)."""

    user_known_hosts: tuple[str, ...] = ()
    """UserKnownHostsFile, where it was set and fleet.yaml says nothing."""

    system_known_hosts: tuple[str, ...] | None = None
    """GlobalKnownHostsFile, where it was set; the usual ones else."""

    revoked_keys: str = ""
    """A file of keys that are refused whatever known_hosts says (RevokedHostKeys)."""

    identities: tuple[str, ...] = field(default=())
    """Keys that OpenSSH's files name: offered first, the agent's after them."""

    identities_only: bool = False
    """Offer no other keys (IdentitiesOnly; also so when fleet.yaml names the keys)."""

    certificates: tuple[str, ...] = ()
    """User certificates beside the usual KEY-cert.pub (CertificateFile)."""

    agent: str = ""
    """The agent's socket (IdentityAgent): a path, `none`, or "" for $SSH_AUTH_SOCK."""

    proxy_command: str = ""
    """Runs in place of a TCP connection, its tokens already filled in (ProxyCommand)."""

    family: str = "any"
    """AddressFamily: any, inet, inet6."""

    bind_address: str = ""

    @property
    def known_hosts_name(self) -> str:
        """`host`, or `[host]:port` for other ports, as known_hosts writes them; an alias stands
        alone (sshconnect.c, get_hostfile_hostname_ipaddr)."""
        if self.host_key_alias:
            return self.host_key_alias.lower()
        host = self.access.address.lower()
        return host if self.access.port == 22 else f"[{host}]:{self.access.port}"
