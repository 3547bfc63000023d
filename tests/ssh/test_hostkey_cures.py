"""Host keys that are refused, and cures that work as they are pasted."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import paramiko
import pytest

from gpufleet.errors import Unreachable
from gpufleet.ssh import connect
from gpufleet.ssh.knownhosts import known_hosts
from tests.conftest import spec_of
from tests.simfleet import SimFleet, SimNode


def key_of(fleet: SimFleet, node: SimNode) -> str:
    """`type base64` of the node's real host key."""
    return " ".join((fleet.folder / node.name / "host_key.pub").read_text().split()[:2])


def other_key() -> str:
    key = paramiko.ECDSAKey.generate()
    return f"{key.get_name()} {key.get_base64()}"


def other_ed25519(tmp_path: Path) -> str:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True
    )
    return " ".join((tmp_path / "other.pub").read_text().split()[:2])


def shown_as(node: SimNode) -> str:
    return f"[{node.address}]:{node.port}"


def refused(fleet: SimFleet, node: SimNode, known: Path, **access: Any) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        connect(spec_of(fleet, node, known_hosts=(str(known),), **access))
    assert caught.value.stage == "host-key"
    assert not caught.value.transient
    return caught.value


def with_config(tmp_path: Path, text: str) -> tuple[str, ...]:
    config = tmp_path / "ssh_config"
    config.write_text(f"Host *\n {text}\n")
    return (str(config),)


@pytest.mark.parametrize("made", ["krl", "missing"])
def test_a_revocation_list_that_cannot_be_read_refuses(
    made: str, fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    revoked = tmp_path / "revoked"
    if made == "krl":
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(revoked)], check=True)
    config = with_config(tmp_path, f"RevokedHostKeys {revoked}")

    reason = refused(fleet, node, fleet.known_hosts, ssh_config=config).reason

    assert reason.startswith(f"RevokedHostKeys {revoked}: ")


def test_the_cure_for_an_unknown_key_works_when_pasted(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    known = tmp_path / "a folder" / "known_hosts"

    error = refused(fleet, node, known)
    done = subprocess.run(["/bin/sh", "-c", error.next_step], capture_output=True, check=False)
    known_hosts.cache_clear()

    assert done.returncode == 0, done.stderr
    connect(spec_of(fleet, node, known_hosts=(str(known),))).close()


def test_the_cure_for_a_changed_key_works_when_pasted(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    known = folder / "known_hosts"
    known.write_text(f"elsewhere {other_key()}\n{shown_as(node)} {other_ed25519(tmp_path)}\n")

    error = refused(fleet, node, known)
    assert f"{known}:2 has another key" in error.reason
    done = subprocess.run(["/bin/sh", "-c", error.next_step], capture_output=True, check=False)
    known_hosts.cache_clear()

    assert done.returncode == 0, done.stderr
    assert "host key not known" in refused(fleet, node, known).reason
    assert known.read_text().startswith("elsewhere ")


def test_the_cure_under_an_alias_names_the_alias(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    known = tmp_path / "known_hosts"
    config = with_config(tmp_path, "HostKeyAlias the-node")

    error = refused(fleet, node, known, ssh_config=config)
    done = subprocess.run(["/bin/sh", "-c", error.next_step], capture_output=True, check=False)
    known_hosts.cache_clear()

    assert done.returncode == 0, done.stderr
    connect(spec_of(fleet, node, known_hosts=(str(known),), ssh_config=config)).close()
