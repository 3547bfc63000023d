"""What a caller can choose about a node, and the files in it that follow from that.

Pure: returns texts, writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NODE_HOME = "/run/simnode"
NODE_PATH = f"{NODE_HOME}/state/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of a session: the stand-in nvidia-smi comes first."""

USERS: Mapping[str, tuple[int, int]] = {
    "root": (0, 0),
    "sshd": (105, 65534),
    "nvidia-persistenced": (112, 112),
    "svc": (990, 990),
    "ml": (1001, 1001),
    "alice": (1002, 1002),
    "bob": (1003, 1003),
    "ops": (1010, 1010),
    "nobody": (65534, 65534),
}
"""User to uid and gid. All but root are without privileges and without sudo."""


@dataclass(frozen=True)
class NodeSettings:
    """How a node is set up."""

    gpus: int = 8
    shell: str = "/bin/bash"
    """Login shell of root and the others; a real one, that this machine has."""
    sshd_lines: tuple[str, ...] = ()
    """Lines before our own in sshd_config: the first of a kind counts, so they win."""
    users: Mapping[str, tuple[int, int]] = field(default_factory=lambda: USERS)


def passwd(settings: NodeSettings) -> str:
    lines = []
    for user, (uid, gid) in settings.users.items():
        shell = "/usr/sbin/nologin" if user in ("sshd", "nobody") else settings.shell
        lines.append(
            f"{user}:x:{uid}:{gid}::{NODE_HOME.replace('simnode', 'home')}/{user}:{shell}\n"
        )
    return "".join(lines)


def group(settings: NodeSettings) -> str:
    names = {gid: user for user, (_, gid) in settings.users.items()}
    names |= {5: "tty", 65534: "nogroup"}
    return "".join(f"{name}:x:{gid}:\n" for gid, name in sorted(names.items()))


def shadow(settings: NodeSettings) -> str:
    """No passwords; `*` and not `!`, which sshd takes for a locked account."""
    return "".join(f"{user}:*:19000:0:99999:7:::\n" for user in settings.users)


def sshd_config(settings: NodeSettings, address: str, port: int) -> str:
    state = f"{NODE_HOME}/state"
    lines = [
        *settings.sshd_lines,
        f"ListenAddress {address}:{port}",
        f"HostKey {state}/host_key",
        f"AuthorizedKeysFile {state}/authorized_keys",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "StrictModes no",  # the files are root's, but their folder is the test's
        "UsePAM no",
        "UseDNS no",
        "PidFile none",
        "PrintMotd no",
        "PrintLastLog no",
        f"SetEnv PATH={NODE_PATH}",
        "Subsystem sftp internal-sftp",
    ]
    return "\n".join(lines) + "\n"
