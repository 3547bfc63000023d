"""Connections over real sshd: who is let in, at which stage it ends, and what is said of it."""

from __future__ import annotations

import base64
import hmac
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from gpufleet.errors import ConnectionLost, ScriptTimeout, Unreachable
from gpufleet.ssh import connect
from gpufleet.ssh.knownhosts import KnownHosts, known_hosts
from gpufleet.transport import Script, Section, node_file
from tests.conftest import spec_of
from tests.simfleet import NodeSettings, SimFleet, SimNode


def script(body: str) -> Script:
    """A script of its own beside the shipped files."""

    class Own(Script):
        def text(self, token: str) -> str:
            frame = node_file("frame.sh")
            return f"GF_TOKEN={token}\n{frame}\ngf_mark start\n{body}\ngf_mark finish\n"

    return Own("own", (), {})


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture(autouse=True)
def _fresh_known_hosts() -> None:
    known_hosts.cache_clear()


def test_a_script_runs_and_its_sections_come_back(fleet: SimFleet, node: SimNode) -> None:
    session = connect(spec_of(fleet, node))

    answer = session.run(script("gf_text hello 'a  b' c"), timeout_s=10)
    session.close()

    assert answer.text("hello") == "a  b\nc\n"


def test_two_scripts_share_one_connection(fleet: SimFleet, node: SimNode) -> None:
    session = connect(spec_of(fleet, node))

    answers = [session.run(script(f"gf_text n {n}"), timeout_s=10).text("n") for n in (1, 2)]
    session.close()

    assert answers == ["1\n", "2\n"]


def test_a_survivor_that_keeps_the_channel_open_delays_nothing(
    fleet: SimFleet, node: SimNode
) -> None:
    session = connect(spec_of(fleet, node))

    started = time.monotonic()
    session.run(script("sleep 8 &"), timeout_s=10)
    session.close()

    assert time.monotonic() - started < 6


def test_a_script_beyond_its_deadline_is_cut_off(fleet: SimFleet, node: SimNode) -> None:
    session = connect(spec_of(fleet, node))

    with pytest.raises(ScriptTimeout, match="no answer in 1 s"):
        session.run(script("sleep 30"), timeout_s=1)
    session.close()


@pytest.fixture
def bashrc(node: SimNode) -> Iterator[Path]:
    path = node.path("/run/home/root/.bashrc")
    yield path
    path.unlink(missing_ok=True)


def test_a_script_that_falls_silent_is_given_up_long_before_its_deadline(
    fleet: SimFleet, node: SimNode
) -> None:
    session = connect(spec_of(fleet, node))
    silent = replace(script("sleep 30"), silence_s=1.0)

    started = time.monotonic()
    with pytest.raises(ConnectionLost, match="no sign of life for 1 s"):
        session.run(silent, timeout_s=60)
    session.close()

    assert time.monotonic() - started < 10


def test_start_up_files_that_eat_the_script_are_named(
    fleet: SimFleet, node: SimNode, bashrc: Path
) -> None:
    bashrc.write_text("cat\n")
    session = connect(spec_of(fleet, node))

    with pytest.raises(Unreachable, match="start-up files read the script from standard input"):
        session.run(script("gf_text hello world"), timeout_s=10)
    session.close()


def test_a_lost_connection_is_told_apart_from_a_timeout(fleet: SimFleet, node: SimNode) -> None:
    session = connect(spec_of(fleet, node))
    body = "gf_text shell $$; kill -9 $PPID; sleep 5"

    with pytest.raises(ConnectionLost):
        session.run(script(body), timeout_s=10)
    session.close()


def test_closing_from_another_thread_ends_a_running_script(fleet: SimFleet, node: SimNode) -> None:
    session = connect(spec_of(fleet, node))
    threading.Timer(0.5, session.close).start()

    with pytest.raises(ConnectionLost):
        session.run(script("sleep 30"), timeout_s=20)


def test_a_stopped_sshd_is_refused_at_stage_connect(fleet: SimFleet, node: SimNode) -> None:
    node.stop_sshd()

    with pytest.raises(Unreachable, match="connection refused") as caught:
        connect(spec_of(fleet, node))

    assert caught.value.stage == "connect"
    assert caught.value.next_step == f"ssh -p {node.port} root@{node.address} true"


def test_a_silent_server_ends_at_stage_handshake(fleet: SimFleet, node: SimNode) -> None:
    node.freeze_sshd()

    with pytest.raises(Unreachable, match="no answer during the SSH handshake in 1 s") as caught:
        connect(spec_of(fleet, node, connect_timeout_s=1.0))

    assert caught.value.stage == "handshake"
    assert caught.value.transient


def test_a_name_that_does_not_resolve_ends_at_stage_dns(fleet: SimFleet, node: SimNode) -> None:
    spec = spec_of(fleet, node)
    access = spec.access.__class__("no-such-host.invalid", identity_file=spec.access.identity_file)

    with pytest.raises(Unreachable, match=r"cannot look up no-such-host\.invalid") as caught:
        connect(spec.__class__("gone", access))

    assert caught.value.stage == "dns"


def test_c07_a_key_that_is_not_authorized_ends_at_stage_authentication(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    key = tmp_path / "other"
    paramiko.ECDSAKey.generate().write_private_key_file(str(key))

    with pytest.raises(Unreachable, match="refused every key offered") as caught:
        connect(spec_of(fleet, node, identity_file=(str(key),)))

    assert caught.value.stage == "authentication"
    assert str(key) in caught.value.reason
    assert not caught.value.transient


def test_c13_a_key_with_a_passphrase_and_no_agent_is_said(
    fleet: SimFleet, node: SimNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = tmp_path / "locked"
    paramiko.ECDSAKey.generate().write_private_key_file(str(key), password="secret")

    with pytest.raises(Unreachable, match="needs a passphrase") as caught:
        connect(spec_of(fleet, node, identity_file=(str(key),)))

    assert "SSH_AUTH_SOCK is not set" in caught.value.reason


def test_c02_an_unknown_host_key_is_refused_with_the_cure(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    empty = tmp_path / "known_hosts"

    with pytest.raises(Unreachable, match="host key not known") as caught:
        connect(spec_of(fleet, node, known_hosts=(str(empty),)))

    assert caught.value.stage == "host-key"
    assert f"ssh-keyscan -p {node.port} {node.address} >> {empty}" in caught.value.next_step
    assert not empty.exists()


def test_accept_new_adds_the_key_once_and_never_takes_a_changed_one(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    known = tmp_path / "new" / "known_hosts"
    spec = spec_of(fleet, node, known_hosts=(str(known),), host_keys="accept-new")

    for _ in range(2):
        connect(spec).close()
        known_hosts.cache_clear()
    assert len(known.read_text().splitlines()) == 1

    changed = known.read_text().replace("AAAAC3NzaC1lZDI1NTE5AAAAI", "AAAAC3NzaC1lZDI1NTE5AAAAJ")
    known.write_text(changed)
    known_hosts.cache_clear()
    with pytest.raises(Unreachable, match="host key changed") as caught:
        connect(spec)
    assert f"{known}:1" in caught.value.reason
    assert known.read_text() == changed


def test_c01_a_changed_host_key_is_refused_with_file_and_line(
    fleet: SimFleet, node: SimNode
) -> None:
    fleet.forge_host_key(node.name)

    with pytest.raises(Unreachable, match="host key changed") as caught:
        connect(spec_of(fleet, node))
    fleet.write_known_hosts()

    assert caught.value.stage == "host-key"
    assert str(fleet.known_hosts) in caught.value.reason


def test_off_takes_any_key(fleet: SimFleet, node: SimNode, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"

    connect(spec_of(fleet, node, known_hosts=(str(empty),), host_keys="off")).close()

    assert not empty.exists()


def test_nothing_is_left_after_failed_and_finished_connections(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    connect(spec_of(fleet, node)).close()
    time.sleep(0.3)
    threads, descriptors = threading.active_count(), open_descriptors()

    for _ in range(5):
        connect(spec_of(fleet, node)).close()
        with pytest.raises(Unreachable):
            connect(spec_of(fleet, node, known_hosts=(str(tmp_path / "none"),)))
    time.sleep(0.5)

    assert threading.active_count() <= threads
    assert open_descriptors() <= descriptors


@pytest.mark.parametrize(
    ("shell", "said"),
    [("/usr/sbin/nologin", "This account is currently not available"), ("/bin/false", "")],
)
def test_a_login_without_a_shell_is_unreachable_with_its_own_words(shell: str, said: str) -> None:
    with SimFleet(1, settings=NodeSettings(shell=shell)) as fleet:
        session = connect(spec_of(fleet, fleet["gpu01"]))

        with pytest.raises(Unreachable, match="the login shell ran no script") as caught:
            session.run(script(""), timeout_s=10)
        session.close()

    assert caught.value.stage == "channel"
    assert said in caught.value.reason


@pytest.mark.parametrize(
    "said", ["sudo: a password is required", "sudo: sorry, you must have a tty to run sudo"]
)
def test_c12_sudo_that_refuses_is_no_privilege_with_its_own_words(
    said: str, fleet: SimFleet, node: SimNode
) -> None:
    node.tool("sudo", f'echo "{said}" >&2; exit 1')
    session = connect(spec_of(fleet, node, sudo=True))

    with pytest.raises(Unreachable, match=f"no privilege: {said}") as caught:
        session.run(script(""), timeout_s=10)
    session.close()

    assert caught.value.stage == "privilege"
    assert not caught.value.transient


def test_sudo_gets_the_whole_script_and_is_never_asked_to_prompt(
    fleet: SimFleet, node: SimNode
) -> None:
    node.tool("sudo", 'echo "$*" >/run/asked; shift; exec "$@"')
    session = connect(spec_of(fleet, node, sudo=True))

    answer = session.run(script("gf_text hello world"), timeout_s=10)
    session.close()

    assert answer.text("hello") == "world\n"
    assert node.path("/run/asked").read_text() == "-n /bin/sh -s\n"


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_sudo_that_waits_for_a_second_factor_is_no_privilege(
    stream: str, fleet: SimFleet, node: SimNode
) -> None:
    """`-n` keeps sudo from asking for a password, not its PAM modules from asking for more."""
    node.tool(
        "sudo", f"echo 'Duo two-factor login for ops: approve on your phone' >&{stream}; sleep 100"
    )
    session = connect(spec_of(fleet, node, sudo=True))

    with pytest.raises(Unreachable) as caught:
        session.run(script(""), timeout_s=2)
    session.close()

    assert caught.value.stage == "privilege"
    assert not caught.value.transient
    assert "sudo started no shell in time: Duo two-factor login for ops" in str(caught.value)
    assert caught.value.next_step.endswith("sudo -n true")


NOISE = (
    "echo 'Welcome to the cluster, 8 GPUs, have fun'; printf '\\033[33mquota: 3, 12 GiB\\033[0m\\n';"
    " echo '0, 0 MiB'; echo 'bash: warning: setlocale: LC_ALL: cannot change locale' >&2;"
    " trap 'echo logout hook: 0, 0 MiB' EXIT"
)


def test_c10_noise_of_a_login_is_never_taken_for_an_answer(
    fleet: SimFleet, node: SimNode, bashrc: Path
) -> None:
    bashrc.write_text(NOISE)
    session = connect(spec_of(fleet, node))

    answer = session.run(script("gf_text hello world"), timeout_s=10)
    session.close()

    assert dict(answer.sections) == {"hello": Section("hello", "world\n", "0")}


def test_c03_known_hosts_lines_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIFfE4Qmzj2BqQXSZ2OYj5OO1Ol9p3vDkPNNFWSGBb5hB"
    # |1|salt|hash of "gpu-01", as ssh-keygen -H writes it
    salt = "AAECAwQFBgcICQoLDA0ODxAREhM="
    digest = base64.b64encode(hmac.digest(base64.b64decode(salt), b"gpu-01", "sha1")).decode()
    path.write_text(
        "# a comment\n\n"
        f"plain,192.0.2.1 ssh-ed25519 {key} comment\n"
        f"[port]:2222 ssh-ed25519 {key}\n"
        f"|1|{salt}|{digest} ssh-ed25519 {key}\r\n"
        f"*.example.com,!bad.example.com ssh-ed25519 {key}\n"
        f"@revoked gone ssh-ed25519 {key}\n"
        f"@cert-authority *.ca ssh-ed25519 {key}\n"
        "broken ssh-ed25519 not-base64!\n"
        f"\ttabs\tssh-ed25519\t{key}\n"
    )

    store = KnownHosts([str(path)])

    lines = {
        name: [entry.line for entry in store.lookup(name)]
        for name in ("plain", "192.0.2.1", "[port]:2222", "port", "gpu-01", "a.example.com")
    }
    assert lines == {
        "plain": [3],
        "192.0.2.1": [3],
        "[port]:2222": [4],
        "port": [],
        "gpu-01": [5],
        "a.example.com": [6],
    }
    assert store.lookup("bad.example.com") == []
    assert store.lookup("gone")[0].marker == "revoked"
    assert [entry.line for entry in store.lookup("tabs")] == [10]
    assert [warning.partition(": ")[0] for warning in store.warnings] == [f"{path}:9"]
    assert store.lookup("x.ca")[0].marker == "cert-authority"
