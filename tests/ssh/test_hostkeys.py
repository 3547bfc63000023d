"""Host keys: what makes a machine known, and what is said where it isn't."""

from __future__ import annotations

import base64
import hmac
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.errors import Unreachable
from gpufleet.ssh import Network, connect
from gpufleet.ssh.knownhosts import KnownHosts, known_hosts, revoked_keys
from tests.conftest import Command, spec_of
from tests.simfleet import NodeSettings, SimFleet, SimNode
from tests.simfleet.settings import NODE_HOME


@pytest.fixture(autouse=True)
def _fresh() -> None:
    known_hosts.cache_clear()
    revoked_keys.cache_clear()


def make_key(folder: Path, kind: str, name: str = "") -> str:
    """A new key pair; returns `ssh-TYPE BASE64`."""
    path = folder / (name or f"key_{kind}")
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


def host_key(node: SimNode) -> str:
    return " ".join((node.folder / "host_key.pub").read_text().split()[:2])


def place(node: SimNode) -> str:
    return f"[{node.address}]:{node.port}"


def hashed(name: str) -> str:
    salt = secrets.token_bytes(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


def reach(fleet: SimFleet, node: SimNode, file: Path, **access: object) -> None:
    connect(spec_of(fleet, node, known_hosts=(str(file),), **access)).close()


def refusal(fleet: SimFleet, node: SimNode, file: Path, **access: object) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        reach(fleet, node, file, **access)
    assert caught.value.stage == "host-key"
    assert not caught.value.transient
    return caught.value


@pytest.mark.parametrize("form", ["plain", "hashed", "pattern", "list", "crlf", "tabs", "comment"])
def test_a_known_key_lets_us_in_however_it_is_written(
    fleet: SimFleet, node: SimNode, file: Path, form: str
) -> None:
    name, key = place(node), host_key(node)
    line = {
        "plain": f"{name} {key}",
        "hashed": f"{hashed(name)} {key}",
        "pattern": f"[127.*]:*,!other {key}",
        "list": f"a,{name},b {key}",
        "crlf": f"{name} {key}\r",
        "tabs": "\t" + f"{name} {key}".replace(" ", "\t"),
        "comment": f"{name} {key} root@build host # 1",
    }[form]
    file.write_text(f"# comment\n\n{line}\n")

    reach(fleet, node, file)


def test_a_negated_pattern_makes_a_host_unknown(fleet: SimFleet, node: SimNode, file: Path) -> None:
    file.write_text(f"[127.*]:*,!{place(node)} {host_key(node)}\n")

    assert "host key not known" in refusal(fleet, node, file).reason


@pytest.fixture(scope="module")
def many_types() -> Iterator[tuple[SimFleet, Path]]:
    """A node whose sshd has a key of each type."""
    lines = tuple(f"HostKey {NODE_HOME}/state/key_{kind}" for kind in ("rsa", "ecdsa"))
    with SimFleet(1, settings=NodeSettings(sshd_lines=lines)) as fleet:
        node = fleet["gpu01"]
        for kind in ("rsa", "ecdsa"):
            make_key(node.folder, kind)
        node.stop_sshd()
        node.start_sshd()
        yield fleet, node.folder


@pytest.mark.parametrize("kind", ["ecdsa", "rsa", "ed25519"])
def test_only_types_that_are_known_are_asked_for(
    many_types: tuple[SimFleet, Path], file: Path, kind: str
) -> None:
    fleet, folder = many_types
    node = fleet["gpu01"]
    keys = {"ed25519": host_key(node)}
    for other in ("ecdsa", "rsa"):
        keys[other] = " ".join((folder / f"key_{other}.pub").read_text().split()[:2])
    file.write_text(f"{place(node)} {keys[kind]}\n")

    reach(fleet, node, file)


def test_a_host_without_a_key_of_a_known_type_has_changed(
    fleet: SimFleet, node: SimNode, file: Path, tmp_path: Path
) -> None:
    file.write_text(f"{place(node)} {make_key(tmp_path, 'ecdsa')}\n")

    reason = refusal(fleet, node, file).reason

    assert f"has no key of a known type (ecdsa-sha2-nistp256, {file}:1)" in reason


def test_a_changed_key_is_told_with_port_file_line_and_a_cure_that_cures(
    fleet: SimFleet, node: SimNode, file: Path, tmp_path: Path
) -> None:
    other = make_key(tmp_path, "ed25519")
    file.write_text(f"# first\n{place(node)} {other}\nanother {other}\n")

    error = refusal(fleet, node, file)

    assert f"host key changed: {place(node)} shows ssh-ed25519 SHA256:" in error.reason
    assert f"{file}:2 has another key" in error.reason
    subprocess.run(error.next_step, shell=True, check=True, capture_output=True)
    known_hosts.cache_clear()
    error = refusal(fleet, node, file)
    assert "host key not known" in error.reason
    subprocess.run(error.next_step, shell=True, check=True, capture_output=True)
    known_hosts.cache_clear()
    reach(fleet, node, file)


@pytest.mark.parametrize("policy", ["strict", "accept-new", "off"])
def test_a_revoked_key_is_refused_whatever_the_policy(
    fleet: SimFleet, node: SimNode, file: Path, policy: str
) -> None:
    key = host_key(node)
    file.write_text(f"{place(node)} {key}\n@revoked * {key}\n")

    assert f"is revoked ({file}:2)" in refusal(fleet, node, file, host_keys=policy).reason


def with_config(tmp_path: Path, text: str) -> tuple[str, ...]:
    path = tmp_path / "ssh_config"
    path.write_text(f"Host *\n {text}\n")
    return (str(path),)


def test_revoked_host_keys_of_ssh_config_are_heeded(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    listed = tmp_path / "revoked"
    config = with_config(tmp_path, f"RevokedHostKeys {listed}")
    listed.write_text(f"{host_key(node)}\n")

    reason = refusal(fleet, node, fleet.known_hosts, ssh_config=config).reason
    assert f"is revoked ({listed})" in reason

    listed.write_bytes(b"SSHKRL\n\0 and so on")
    revoked_keys.cache_clear()
    reason = refusal(fleet, node, fleet.known_hosts, ssh_config=config).reason
    assert "(KRL) is not supported" in reason

    listed.unlink()
    revoked_keys.cache_clear()
    assert "No such file" in refusal(fleet, node, fleet.known_hosts, ssh_config=config).reason


def test_an_alias_is_what_known_hosts_is_asked_for(
    fleet: SimFleet, node: SimNode, tmp_path: Path, file: Path
) -> None:
    file.write_text(f"the-node {host_key(node)}\n")

    reach(fleet, node, file, ssh_config=with_config(tmp_path, "HostKeyAlias The-Node"))


def test_a_certificate_authority_is_said_not_to_help(
    fleet: SimFleet, node: SimNode, file: Path
) -> None:
    file.write_text(f"@cert-authority * {host_key(node)}\n")

    assert f"{file}:1 does not help: host certificates are not" in refusal(fleet, node, file).reason


def test_odd_lines_are_told_once_with_file_and_line_and_hurt_nothing(
    fleet: SimFleet, node: SimNode, file: Path
) -> None:
    good = f"{place(node)} {host_key(node)}"
    file.write_text(f"junk\n{good}\nname ssh-ed25519 AAAA!\n|1|bad {host_key(node)}\n")

    network = Network()
    spec = spec_of(fleet, node, known_hosts=(str(file),))
    notes = network.prepare([spec])
    network.connect(spec).close()

    assert [f"{file}:{n}: unreadable line, left out" for n in (1, 3, 4)] == notes


def test_the_command_shows_odd_lines_but_not_to_cron(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    text = fleet.fleet_yaml.read_text()
    odd = tmp_path / "known_hosts"
    odd.write_text(f"junk\n{fleet.known_hosts.read_text()}")
    own = tmp_path / "fleet.yaml"
    own.write_text(text.replace(str(fleet.known_hosts), str(odd)))

    loud = gpufleet("status", "--hosts", "gpu01", "-i", str(own))
    quiet = gpufleet("status", "--hosts", "gpu01", "-i", str(own), "--quiet")

    assert f"warning: {odd}:1: unreadable line, left out" in loud.err
    assert (0, "", "") == (quiet.code, quiet.out, quiet.err)


def test_off_is_warned_of(fleet: SimFleet, node: SimNode, file: Path) -> None:
    specs = [spec_of(fleet, n, known_hosts=(str(file),), host_keys="off") for n in list(fleet)[:2]]

    (note,) = Network().prepare(specs)

    assert "gpu01: host_keys is off" in note
    assert "1 more node" in note


def test_ten_thousand_lines_are_all_found(file: Path) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFfE4Qmzj2BqQXSZ2OYj5OO1Ol9p3vDkPNNFWSGBb5hB"
    names = [f"gpu{n:05}" for n in range(5000)]
    lines = [f"{name} {key}" for name in names]
    lines += [f"{hashed(f'h{name}')} {key}" for name in names]
    file.write_text("\n".join(lines) + "\n")

    store = KnownHosts([str(file)])

    assert [] == store.warnings
    assert [1, 5000] == [store.lookup(name)[0].line for name in (names[0], names[-1])]
    assert [5001, 10000] == [store.lookup(f"h{name}")[0].line for name in (names[0], names[-1])]


# --- accept-new ---------------------------------------------------------------------------------


def test_a_new_key_is_added_after_a_file_without_a_final_newline(
    fleet: SimFleet, node: SimNode, file: Path
) -> None:
    file.write_text("# kept\nodd line kept\nother ssh-ed25519 AAAA")

    reach(fleet, node, file, host_keys="accept-new")

    lines = file.read_text().splitlines()
    assert ["# kept", "odd line kept", "other ssh-ed25519 AAAA"] == lines[:3]
    assert [f"{place(node)} {host_key(node)}"] == lines[3:]
    known_hosts.cache_clear()
    reach(fleet, node, file)


def test_threads_and_processes_add_each_host_once(fleet: SimFleet, file: Path) -> None:
    program = (
        "import sys\nfrom gpufleet.policy import *\nfrom gpufleet.ssh import connect\n"
        "host, port, key, known = sys.argv[1:]\n"
        "access = Access(host, port=int(port), identity_file=(key,), known_hosts=(known,),"
        " host_keys='accept-new')\n"
        "connect(NodeSpec('n', access)).close()\n"
    )
    others = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", program, node.address, str(node.port)),
                *(str(fleet.identity_file), str(file)),
            ]
        )
        for node in fleet
    ]
    network = Network()
    specs = [spec_of(fleet, n, known_hosts=(str(file),), host_keys="accept-new") for n in fleet]
    threads = [
        threading.Thread(target=lambda spec=spec: network.connect(spec).close())
        for spec in [*specs, *specs]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [0] * len(others) == [other.wait(60) for other in others]
    expected = sorted(f"{place(node)} {host_key(node)}" for node in fleet)
    assert expected == sorted(file.read_text().splitlines())


def test_a_key_that_another_process_just_added_is_heeded(
    fleet: SimFleet, node: SimNode, file: Path, tmp_path: Path
) -> None:
    file.write_text("")
    spec = spec_of(fleet, node, known_hosts=(str(file),), host_keys="accept-new")
    network = Network()
    network.prepare([spec])  # read: nothing known
    file.write_text(f"{place(node)} {make_key(tmp_path, 'ed25519')}\n")

    with pytest.raises(Unreachable, match="host key changed"):
        network.connect(spec)


def test_a_key_that_changes_within_one_run_is_refused(
    fleet: SimFleet, node: SimNode, file: Path
) -> None:
    spec = spec_of(fleet, node, known_hosts=(str(file),), host_keys="accept-new")
    network = Network()
    network.connect(spec).close()
    other = spec_of(fleet, fleet["gpu02"], known_hosts=(str(file),), host_keys="accept-new")
    network.connect(other).close()

    lines = file.read_text().splitlines()
    assert 2 == len(lines)
    network.connect(spec).close()
    assert lines == file.read_text().splitlines()
