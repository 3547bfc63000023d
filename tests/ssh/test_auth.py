"""Logins: which keys are offered, from where, and what is said when none opens the door."""

from __future__ import annotations

import os
import pty
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from gpufleet.errors import Unreachable
from gpufleet.policy import Access
from gpufleet.ssh import Network, connect
from gpufleet.ssh.keys import MAX_OFFERED, forget, identities
from gpufleet.ssh.target import Target
from tests.conftest import Command, spec_of
from tests.simfleet import NodeSettings, SimFleet, SimNode
from tests.simfleet.settings import NODE_HOME

SECRET = "open sesame 42"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    forget()
    yield
    forget()


def keygen(path: Path, *options: str, passphrase: str = "") -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path), *options]
    subprocess.run(command, check=True)
    return path


def lock(fleet: SimFleet, folder: Path) -> Path:
    """The fleet's key with a passphrase on it."""
    path = folder / "locked"
    path.write_bytes(fleet.identity_file.read_bytes())
    path.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", SECRET, "-f", str(path)], check=True)
    return path


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real ssh-agent that this process uses."""
    path = tmp_path / "agent"
    running = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    while not path.exists():
        time.sleep(0.01)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield path
    running.kill()
    running.wait()


def add(key: Path) -> None:
    subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL)


def offered(fleet: SimFleet, node: SimNode, **access: object) -> list[str]:
    spec = spec_of(fleet, node, **access)
    return [identity.origin for identity in identities(Target("n", spec.access))]


def test_the_agents_keys_open_the_door_where_none_is_configured(
    fleet: SimFleet, node: SimNode, agent: Path
) -> None:
    add(fleet.identity_file)

    connect(spec_of(fleet, node, identity_file=())).close()


def test_an_agent_with_many_keys_is_offered_from_in_part(
    fleet: SimFleet, node: SimNode, agent: Path, tmp_path: Path
) -> None:
    for number in range(8):
        add(keygen(tmp_path / f"k{number}"))

    assert ["agent"] * MAX_OFFERED == offered(fleet, node, identity_file=())


def test_a_configured_key_is_offered_alone_and_through_the_agent_that_holds_it(
    fleet: SimFleet, node: SimNode, agent: Path, tmp_path: Path
) -> None:
    for number in range(8):
        add(keygen(tmp_path / f"k{number}"))
    add(fleet.identity_file)

    assert [f"{fleet.identity_file} (agent)"] == offered(fleet, node)
    connect(spec_of(fleet, node)).close()


def test_keys_of_ssh_config_come_before_the_agents(
    fleet: SimFleet, node: SimNode, agent: Path, tmp_path: Path
) -> None:
    for number in range(3):
        add(keygen(tmp_path / f"k{number}"))
    target = Target("n", Access(node.address), identities=(str(fleet.identity_file), "/no/such"))
    only = Target("n", Access(node.address), identities=target.identities, identities_only=True)

    origins = [identity.origin for identity in identities(target)]

    assert [str(fleet.identity_file), "agent", "agent", "agent"] == origins
    assert [str(fleet.identity_file)] == [identity.origin for identity in identities(only)]


def test_a_locked_key_that_the_agent_holds_needs_no_passphrase(
    fleet: SimFleet, node: SimNode, agent: Path, tmp_path: Path
) -> None:
    add(fleet.identity_file)
    locked = lock(fleet, tmp_path)  # without its .pub: known by the clear part of the file

    connect(spec_of(fleet, node, identity_file=(str(locked),))).close()


def test_a_public_key_file_names_a_key_of_the_agent(
    fleet: SimFleet, node: SimNode, agent: Path
) -> None:
    public = f"{fleet.identity_file}.pub"

    with pytest.raises(Unreachable, match="is a public key that no agent holds"):
        connect(spec_of(fleet, node, identity_file=(public,)))
    add(fleet.identity_file)
    forget()
    connect(spec_of(fleet, node, identity_file=(public,))).close()


def test_an_agent_that_never_answers_costs_seconds_not_the_run(
    fleet: SimFleet, node: SimNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mute"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        monkeypatch.setattr("gpufleet.ssh.agent._ANSWER_S", 0.2)

        connect(spec_of(fleet, node)).close()


def test_many_threads_sign_with_one_agent(fleet: SimFleet, agent: Path) -> None:
    add(fleet.identity_file)
    network = Network()
    failed: list[Exception] = []

    def login(node: SimNode) -> None:
        try:
            network.connect(spec_of(fleet, node, identity_file=())).close()
        except Exception as error:  # noqa: BLE001  # told below
            failed.append(error)

    threads = [threading.Thread(target=login, args=(node,)) for node in [*fleet] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == failed


def test_keys_are_read_once_for_all_nodes(fleet: SimFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    real = paramiko.PKey.from_path

    def counting(path: Path, password: str | None = None) -> paramiko.PKey:
        read.append(path)
        return real(path, password=password)

    monkeypatch.setattr(paramiko.PKey, "from_path", staticmethod(counting))
    network = Network()
    for node in fleet:
        network.connect(spec_of(fleet, node)).close()

    assert [fleet.identity_file] == read


# --- certificates -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certified() -> Iterator[tuple[SimFleet, Path]]:
    """A node that lets in whom its authority has signed, and a key that only a certificate opens it
    with."""
    line = f"TrustedUserCAKeys {NODE_HOME}/state/ca.pub"
    with SimFleet(1, settings=NodeSettings(sshd_lines=(line,))) as fleet:
        node = fleet["gpu01"]
        authority = keygen(node.folder / "ca")
        key = keygen(node.folder / "user_key")
        command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "t", "-n", "root", f"{key}.pub"]
        subprocess.run(command, check=True)
        yield fleet, key


def test_a_certificate_beside_the_key_is_offered_first(certified: tuple[SimFleet, Path]) -> None:
    fleet, key = certified
    node = fleet["gpu01"]

    assert [f"{key}-cert.pub", str(key)] == offered(fleet, node, identity_file=(str(key),))
    connect(spec_of(fleet, node, identity_file=(str(key),))).close()


def test_a_certificate_elsewhere_is_matched_to_its_key(
    certified: tuple[SimFleet, Path], tmp_path: Path
) -> None:
    fleet, key = certified
    alone = tmp_path / "alone"
    alone.write_bytes(key.read_bytes())
    alone.chmod(0o600)
    other = keygen(tmp_path / "other")
    config = tmp_path / "config"
    config.write_text(f"Host *\n CertificateFile {key}-cert.pub\n")
    ours = {"identity_file": (str(other), str(alone)), "ssh_config": (str(config),)}

    connect(spec_of(fleet, fleet["gpu01"], **ours)).close()


def test_a_certificate_in_the_agent_opens_the_door(
    certified: tuple[SimFleet, Path], agent: Path
) -> None:
    fleet, key = certified
    add(key)  # with its certificate

    connect(spec_of(fleet, fleet["gpu01"], identity_file=())).close()


# --- passphrases --------------------------------------------------------------------------------


def with_key(fleet: SimFleet, folder: Path, key: Path) -> Path:
    own = folder / "fleet.yaml"
    own.write_text(fleet.fleet_yaml.read_text().replace(str(fleet.identity_file), str(key)))
    return own


def on_a_terminal(own: Path, typed: str) -> tuple[int, str]:
    """Exit status and all that a terminal showed of a status of two nodes; `typed` answers the
    first question for a passphrase."""
    gpufleet = [sys.executable, "-m", "gpufleet", "status"]
    # setsid -c: the terminal is the command's own, which getpass looks for
    command = ["setsid", "-cw", *gpufleet, "--hosts", "gpu01,gpu02", "-i", str(own)]
    control, terminal = pty.openpty()
    running = subprocess.Popen(
        command,
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(terminal)
    shown, answered, until = "", False, time.monotonic() + 60
    while time.monotonic() < until:
        if not select.select([control], [], [], 1)[0]:
            if running.poll() is not None:
                break
            continue
        try:
            data = os.read(control, 4096)
        except OSError:
            break
        shown += data.decode(errors="replace")
        if "Passphrase for" in shown and not answered:
            os.write(control, f"{typed}\n".encode())
            answered = True
    os.close(control)
    return running.wait(30), shown


def test_a_passphrase_is_asked_for_once_on_a_terminal(fleet: SimFleet, tmp_path: Path) -> None:
    locked = lock(fleet, tmp_path)

    code, shown = on_a_terminal(with_key(fleet, tmp_path, locked), SECRET)

    assert code == 0, shown
    assert 1 == shown.count(f"Passphrase for {locked}: ")
    assert SECRET not in shown


def test_a_wrong_passphrase_ends_it_before_anything_is_contacted(
    fleet: SimFleet, tmp_path: Path
) -> None:
    locked = lock(fleet, tmp_path)

    code, shown = on_a_terminal(with_key(fleet, tmp_path, locked), "wrong one")

    assert code == 2, shown
    assert re.search(r"wrong passphrase\?.*nothing was done", shown), shown


def test_c13_without_a_terminal_nothing_is_asked(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    locked = lock(fleet, tmp_path)
    bare = {"PATH": "/usr/bin:/bin"}

    ran = gpufleet(
        *("status", "--hosts", "gpu01", "--json", "-i", str(with_key(fleet, tmp_path, locked))),
        env=bare,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )

    node = ran.nodes()["gpu01"]
    assert (3, "UNREACHABLE", "authentication") == (ran.code, node["verdict"], node["stage"])
    assert "needs a passphrase and no agent holds it (SSH_AUTH_SOCK is not set)" in node["reason"]
    assert "Passphrase" not in ran.err


# --- what the server says -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def grumpy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimFleet]:
    """gpu01 cuts off after one try; gpu02 says why before the login; gpu03 wants two proofs."""
    with SimFleet(
        3,
        overrides={
            "gpu01": NodeSettings(sshd_lines=("MaxAuthTries 1",)),
            "gpu02": NodeSettings(sshd_lines=(f"Banner {NODE_HOME}/state/banner",)),
            "gpu03": NodeSettings(
                sshd_lines=(
                    "AuthenticationMethods publickey,password",
                    "PermitRootLogin yes",
                    "PasswordAuthentication yes",
                )
            ),
        },
    ) as fleet:
        (fleet["gpu02"].folder / "banner").write_text(
            "Access denied by pam_slurm_adopt: you have no active jobs on this node\n"
        )
        yield fleet


def refusal(fleet: SimFleet, name: str, *keys: Path) -> Unreachable:
    files = tuple(str(key) for key in keys) or (str(fleet.identity_file),)
    with pytest.raises(Unreachable) as caught:
        connect(spec_of(fleet, fleet[name], identity_file=files))
    assert ("authentication", False) == (caught.value.stage, caught.value.transient)
    return caught.value


def test_c07_a_server_that_cuts_us_off_is_quoted_and_not_tried_again(
    grumpy: SimFleet, tmp_path: Path
) -> None:
    keys = [keygen(tmp_path / f"k{number}") for number in range(3)]

    error = refusal(grumpy, "gpu01", *keys)

    assert "Too many authentication failures" in error.reason
    assert all(str(key) in error.reason for key in keys)


def test_c07_what_a_server_says_before_the_login_stands_in_the_reason(
    grumpy: SimFleet, tmp_path: Path
) -> None:
    error = refusal(grumpy, "gpu02", keygen(tmp_path / "other"))

    assert "Access denied by pam_slurm_adopt: you have no active jobs on this node" in error.reason


def test_a_server_that_wants_a_second_proof_is_understood(grumpy: SimFleet) -> None:
    assert "wants a second proof" in refusal(grumpy, "gpu03").reason
